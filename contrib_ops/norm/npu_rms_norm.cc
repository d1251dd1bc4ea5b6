// npu_rms_norm(self, gamma; epsilon) -> y, rstd. The semantics are in npu_rms_norm.py.
#include <algorithm>
#include <cmath>

#include "ep/kernels/convert.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

constexpr const char* kOp = "npu_rms_norm";
constexpr int64_t kChunk = 1024;     // elements converted to float at a time: stays in the first-level cache
constexpr int64_t kGrain = 16 * 1024;  // elements that are worth another thread

template <class X>
float SumOfSquares(const X* x, int64_t n) {
  alignas(64) float values[kChunk];
  float total = 0;
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = std::min(kChunk, n - i);
    ToFloat(x + i, values, m);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < m; ++j) sum += values[j] * values[j];
    total += sum;
  }
  return total;
}

// y may be x.
template <class X, class G>
void Scale(const X* x, float rstd, const G* gamma, X* y, int64_t n) {
  alignas(64) float values[kChunk], weights[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = std::min(kChunk, n - i);
    ToFloat(x + i, values, m);
    ToFloat(gamma + i, weights, m);
#pragma omp simd
    for (int64_t j = 0; j < m; ++j) values[j] = values[j] * rstd * weights[j];
    FromFloat(values, y + i, m);
  }
}

class RmsNormKernel final : public Kernel {
 public:
  explicit RmsNormKernel(const KernelInfo& info) : epsilon_(static_cast<float>(info.attributes.Float("epsilon", 1e-6))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), gamma = ctx.Input(1);
    NPU_CHECK(x && gamma, "[", kOp, "] expected the tensors self and gamma");
    const int axes = gamma.shape.rank(), outer = x.shape.rank() - axes;
    bool trailing = axes >= 1 && outer >= 0;
    for (int i = 0; trailing && i < axes; ++i) trailing = x.shape[outer + i] == gamma.shape[i];
    NPU_CHECK(trailing, "[", kOp, "] expected gamma to have the trailing dimensions of self ", x.shape, ", got ",
              gamma.shape);
    NPU_CHECK(gamma.dtype == x.dtype || gamma.dtype == DType::kFloat32, "[", kOp, "] expected gamma of self's dtype ",
              NameOf(x.dtype), " or float32, got ", NameOf(gamma.dtype));

    Shape rstd_shape = x.shape;
    for (int i = outer; i < x.shape.rank(); ++i) rstd_shape[i] = 1;
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    const TensorView rstd = ctx.Output(1, DType::kFloat32, rstd_shape);
    const int64_t rows = x.shape.Elements(0, outer);
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
      ParallelFor(rows, 1 + kGrain / (n + 1), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const X* in = x.as<X>() + row * n;
          // Rows without elements have the mean 0/0: NaN, as in torch.
          const float r = 1.0f / std::sqrt(SumOfSquares(in, n) / static_cast<float>(n) + epsilon);
          if (y) Scale(in, r, gamma.as<G>(), y.as<X>() + row * n, n);
          if (rstd) rstd.as<float>()[row] = r;
        }
      });
    });
  }

  float epsilon_;
};

NPU_KERNEL(NPURmsNorm, RmsNormKernel);

}  // namespace
}  // namespace npu
