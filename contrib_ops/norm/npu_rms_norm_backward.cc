// npu_rms_norm_backward(dy, self, gamma, rstd) -> dx, dgamma. The semantics are in npu_rms_norm_backward.py.
#include "contrib_ops/norm/npu_rms_norm_backward.h"

#include <algorithm>

#include "ep/kernels/normalization/trailing_axes.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPURmsNormBackward::In;
using Out = nodes::NPURmsNormBackward::Out;

constexpr const char* kOp = "npu_rms_norm_backward";

// One row: writes dx, which may be dy or x, and adds dy * n to dgamma.
template <class X, class G>
void BackwardRow(const X* dy, const X* x, const G* gamma, float rstd, X* dx, float* dgamma, int64_t n) {
  InBlock<X> in_dy, in_x;
  InBlock<G> in_gamma;
  OutBlock<X> out;
  double total = 0.0;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* d = in_dy.Load(dy + begin, count);
    const float* v = in_x.Load(x + begin, count);
    const float* g = in_gamma.Load(gamma + begin, count);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += d[i] * g[i] * v[i];
    total += sum;
  });
  const float along = static_cast<float>(total / static_cast<double>(n)) * rstd;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* d = in_dy.Load(dy + begin, count);
    const float* v = in_x.Load(x + begin, count);
    const float* g = in_gamma.Load(gamma + begin, count);
    float* r = out.Values(dx + begin);
    float* sums = dgamma + begin;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float normalized = v[i] * rstd;
      sums[i] += d[i] * normalized;
      r[i] = rstd * (d[i] * g[i] - normalized * along);
    }
    out.Commit(dx + begin, count);
  });
}

class RmsNormBackwardKernel final : public Kernel {
 public:
  explicit RmsNormBackwardKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView dy = ctx.Input(In::dy), x = ctx.Input(In::self), gamma = ctx.Input(In::gamma),
                     rstd = ctx.Input(In::rstd);
    NPU_OP_CHECK(kOp, dy && x && gamma && rstd, "expected the tensors dy, self, gamma and rstd");
    const int leading = LeadingAxes(kOp, "gamma", gamma.shape, "self", x.shape);
    NPU_OP_CHECK(kOp, dy.shape == x.shape && dy.dtype == x.dtype, "expected dy like self, ", NameOf(x.dtype), " ",
                 x.shape, ", got ", NameOf(dy.dtype), " ", dy.shape);
    NPU_OP_CHECK(kOp, gamma.dtype == x.dtype || gamma.dtype == DType::kFloat32, "expected gamma of self's dtype ",
                 NameOf(x.dtype), " or float32, got ", NameOf(gamma.dtype));
    const Shape rows_shape = RowShape(x.shape, leading);
    NPU_OP_CHECK(kOp, rstd.shape == rows_shape, "expected rstd of shape ", rows_shape, ", got ", rstd.shape);

    const TensorView dx = ctx.Output(Out::dx, x.dtype, x.shape);
    const TensorView dgamma = ctx.Output(Out::dgamma, DType::kFloat32, gamma.shape);
    if (gamma.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using X = decltype(tag);
      if (gamma.dtype == DType::kFloat32) {
        Enqueue<X, float>(ctx, dy, x, gamma, rstd, dx, dgamma);
      } else {
        Enqueue<X, X>(ctx, dy, x, gamma, rstd, dx, dgamma);
      }
    });
  }

 private:
  template <class X, class G>
  void Enqueue(OpContext& ctx, TensorView dy, TensorView x, TensorView gamma, TensorView rstd, TensorView dx,
               TensorView dgamma) const {
    const int64_t n = gamma.elements(), rows = rstd.elements();
    const int64_t threads = std::min(ThreadsForElements(rows * n), std::max<int64_t>(rows, 1));
    // Each thread sums over its own rows; if dx is not requested, its rows are scratch.
    auto* sums = static_cast<float*>(ctx.Workspace(static_cast<size_t>(threads * n) * sizeof(float)));
    X* to = dx ? dx.as<X>() : static_cast<X*>(ctx.Workspace(static_cast<size_t>(threads * n) * sizeof(X)));
    const bool keep = static_cast<bool>(dx);
    ctx.Launch(kOp, [=] {
      ForRowsOfThreads(rows, threads, [&](int64_t thread, int64_t first, int64_t last) {
        float* own = sums + thread * n;
        std::fill_n(own, n, 0.0f);
        for (int64_t row = first; row < last; ++row) {
          BackwardRow(dy.as<X>() + row * n, x.as<X>() + row * n, gamma.as<G>(), rstd.as<float>()[row],
                      to + (keep ? row : thread) * n, own, n);
        }
      });
      if (!dgamma) return;
      ParallelFor(n, kSerialElements, [&](int64_t begin, int64_t end) {
        float* total = dgamma.as<float>();
        std::copy(sums + begin, sums + end, total + begin);
        for (int64_t thread = 1; thread < threads; ++thread) {
          const float* own = sums + thread * n;
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) total[i] += own[i];
        }
      });
    });
  }
};

NPU_KERNEL(NPURmsNormBackward, RmsNormBackwardKernel);

}  // namespace
}  // namespace npu
