// npu_deep_norm(x, gx, beta, gamma; alpha, epsilon) -> mean, rstd, y. The semantics are in npu_deep_norm.py.
#include "contrib_ops/norm/npu_deep_norm.h"

#include "ep/kernels/normalization/moments.h"
#include "ep/kernels/normalization/trailing_axes.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUDeepNorm::In;
using Out = nodes::NPUDeepNorm::Out;

constexpr const char* kOp = "npu_deep_norm";

template <class T>
struct DeepNormTask {
  const T *x, *gx, *beta, *gamma;
  float *mean, *rstd;
  T* y;
  int64_t n;
  float alpha;
  double epsilon;

  void Rows(int64_t begin, int64_t end) const {
    InBlock<T> in_x, in_gx;
    alignas(64) float sum[kRowBlock];
    for (int64_t row = begin; row < end; ++row) {
      const auto load = [&](int64_t at, int64_t count) {
        const float* a = in_x.Load(x + row * n + at, count);
        const float* b = in_gx.Load(gx + row * n + at, count);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) sum[i] = alpha * a[i] + b[i];
        return static_cast<const float*>(sum);
      };
      const Moments m = RowMoments(n, epsilon, load);
      if (mean) mean[row] = m.mean;
      if (rstd) rstd[row] = m.rstd;
      if (y) NormalizeRow(n, m, load, gamma, beta, y + row * n);
    }
  }
};

class DeepNormKernel final : public Kernel {
 public:
  explicit DeepNormKernel(const KernelInfo& info)
      : alpha_(static_cast<float>(info.attributes.Float("alpha"))), epsilon_(info.attributes.Float("epsilon")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), gx = ctx.Input(In::gx), beta = ctx.Input(In::beta),
                     gamma = ctx.Input(In::gamma);
    NPU_OP_CHECK(kOp, x && gx && beta && gamma, "expected the tensors x, gx, beta and gamma");
    NPU_OP_CHECK(kOp, x.shape == gx.shape, "expected x and gx of one shape, got ", x.shape, " and ", gx.shape);
    NPU_OP_CHECK(kOp, beta.shape == gamma.shape, "expected beta and gamma of one shape, got ", beta.shape, " and ",
                 gamma.shape);
    NPU_OP_CHECK(kOp, x.dtype == gx.dtype && x.dtype == beta.dtype && x.dtype == gamma.dtype,
                 "expected x, gx, beta and gamma of one dtype, got ", NameOf(x.dtype), ", ", NameOf(gx.dtype), ", ",
                 NameOf(beta.dtype), " and ", NameOf(gamma.dtype));
    const int leading = LeadingAxes(kOp, "gamma", gamma.shape, "x", x.shape);
    const TensorView mean = ctx.Output(Out::mean, DType::kFloat32, RowShape(x.shape, leading));
    const TensorView rstd = ctx.Output(Out::rstd, DType::kFloat32, RowShape(x.shape, leading));
    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    const int64_t rows = x.shape.Elements(0, leading);
    if (rows == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      const DeepNormTask<T> task{x.as<T>(),        gx.as<T>(), beta.as<T>(),     gamma.as<T>(), mean.as<float>(),
                                 rstd.as<float>(), y.as<T>(),  gamma.elements(), alpha_,        epsilon_};
      ctx.Launch(kOp, [task, rows] {
        ParallelFor(rows, RowGrain(task.n), [&](int64_t begin, int64_t end) { task.Rows(begin, end); });
      });
    });
  }

 private:
  float alpha_;
  double epsilon_;
};

NPU_KERNEL(NPUDeepNorm, DeepNormKernel);

}  // namespace
}  // namespace npu
