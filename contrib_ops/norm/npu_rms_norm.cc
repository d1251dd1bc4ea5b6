// npu_rms_norm(self, gamma; epsilon) -> y, rstd. The semantics are in npu_rms_norm.py.
#include "contrib_ops/norm/npu_rms_norm.h"

#include "ep/kernels/normalization/rms_norm.h"
#include "ep/kernels/normalization/trailing_axes.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPURmsNorm::In;
using Out = nodes::NPURmsNorm::Out;

constexpr const char* kOp = "npu_rms_norm";

class RmsNormKernel final : public Kernel {
 public:
  explicit RmsNormKernel(const KernelInfo& info) : epsilon_(info.attributes.Float("epsilon")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self), gamma = ctx.Input(In::gamma);
    NPU_OP_CHECK(kOp, x && gamma, "expected the tensors self and gamma");
    const int leading = LeadingAxes(kOp, "gamma", gamma.shape, "self", x.shape);
    NPU_OP_CHECK(kOp, gamma.dtype == x.dtype || gamma.dtype == DType::kFloat32, "expected gamma of self's dtype ",
                 NameOf(x.dtype), " or float32, got ", NameOf(gamma.dtype));

    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    const TensorView rstd = ctx.Output(Out::rstd, DType::kFloat32, RowShape(x.shape, leading));
    const int64_t rows = x.shape.Elements(0, leading);
    if (rows == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using X = decltype(tag);
      if (gamma.dtype == DType::kFloat32) {
        Enqueue<X, float>(ctx, x, gamma, y, rstd, rows);
      } else {
        Enqueue<X, X>(ctx, x, gamma, y, rstd, rows);
      }
    });
  }

 private:
  template <class X, class G>
  void Enqueue(OpContext& ctx, TensorView x, TensorView gamma, TensorView y, TensorView rstd, int64_t rows) const {
    ctx.Launch(kOp, [x, gamma, y, rstd, rows, n = gamma.elements(), epsilon = epsilon_] {
      ParallelFor(rows, RowGrain(n), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const X* in = x.as<X>() + row * n;
          const float r = ReciprocalRms(in, epsilon, n);
          if (y) ScaleRow(in, r, gamma.as<G>(), y.as<X>() + row * n, n);
          if (rstd) rstd.as<float>()[row] = r;
        }
      });
    });
  }

  double epsilon_;
};

NPU_KERNEL(NPURmsNorm, RmsNormKernel);

}  // namespace
}  // namespace npu
