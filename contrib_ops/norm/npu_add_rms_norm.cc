// npu_add_rms_norm(x1, x2, gamma; epsilon) -> y, rstd, x. The semantics are in npu_add_rms_norm.py.
#include "contrib_ops/norm/npu_add_rms_norm.h"

#include "ep/kernels/normalization/add_rms_norm.h"
#include "ep/kernels/normalization/trailing_axes.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUAddRmsNorm::In;
using Out = nodes::NPUAddRmsNorm::Out;

constexpr const char* kOp = "npu_add_rms_norm";

class AddRmsNormKernel final : public Kernel {
 public:
  explicit AddRmsNormKernel(const KernelInfo& info) : epsilon_(info.attributes.Float("epsilon")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x1 = ctx.Input(In::x1), x2 = ctx.Input(In::x2), gamma = ctx.Input(In::gamma);
    NPU_OP_CHECK(kOp, x1 && x2 && gamma, "expected the tensors x1, x2 and gamma");
    NPU_OP_CHECK(kOp, x1.shape == x2.shape, "expected x1 and x2 of one shape, got ", x1.shape, " and ", x2.shape);
    NPU_OP_CHECK(kOp, x1.dtype == x2.dtype && x1.dtype == gamma.dtype, "expected x1, x2 and gamma of one dtype, got ",
                 NameOf(x1.dtype), ", ", NameOf(x2.dtype), " and ", NameOf(gamma.dtype));
    const int leading = LeadingAxes(kOp, "gamma", gamma.shape, "x1", x1.shape);

    const TensorView y = ctx.Output(Out::y, x1.dtype, x1.shape);
    const TensorView rstd = ctx.Output(Out::rstd, DType::kFloat32, RowShape(x1.shape, leading));
    const TensorView x = ctx.Output(Out::x, x1.dtype, x1.shape);
    const int64_t rows = x1.shape.Elements(0, leading);
    if (rows == 0) return;
    DispatchFloats(kOp, x1.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [x1, x2, gamma, y, rstd, x, rows, epsilon = epsilon_] {
        AddRmsNorm(rows, gamma.elements(), epsilon, x1.as<const T>(), x2.as<const T>(), gamma.as<const T>(), x.as<T>(),
                   y.as<T>(), rstd.as<float>());
      });
    });
  }

 private:
  double epsilon_;
};

NPU_KERNEL(NPUAddRmsNorm, AddRmsNormKernel);

}  // namespace
}  // namespace npu
