// LRN: local response normalisation across channels, computed in float (double for float64) and rounded once.
#include <algorithm>
#include <cmath>

#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

constexpr const char* kOp = "LRN";

// y = x / (bias + alpha / size * the sum of squares of `size` neighbouring channels) ^ beta.
template <class T>
struct LrnTask {
  using C = ComputeType<T>;
  const T* x;
  T* y;
  int64_t planes, channels, positions, size;
  double alpha, beta, bias;

  void Run() const {
    ParallelFor(planes, RowGrain(positions * std::min(size, channels)), [this](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        // The window of an even size reaches one channel farther up.
        const int64_t c = plane % channels, first = std::max<int64_t>(0, c - (size - 1) / 2);
        const int64_t last = c + std::min(channels - 1 - c, size / 2);
        ForEachBlock(positions, [&](int64_t at, int64_t count) { Block(plane, plane - c, first, last, at, count); });
      }
    });
  }

 private:
  void Block(int64_t plane, int64_t image, int64_t first, int64_t last, int64_t at, int64_t count) const {
    alignas(64) C sums[kRowBlock], values[kRowBlock];
    std::fill(sums, sums + count, C{0});
    for (int64_t c = first; c <= last; ++c) {
      UpcastRow(x + (image + c) * positions + at, values, count);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sums[i] += values[i] * values[i];
    }
    UpcastRow(x + plane * positions + at, values, count);
    const C factor = static_cast<C>(alpha / static_cast<double>(size)), summand = static_cast<C>(bias);
    const C exponent = static_cast<C>(-beta);
    for (int64_t i = 0; i < count; ++i) {
      const C base = summand + factor * sums[i];
      if constexpr (std::is_same_v<C, float>) {
        values[i] *= math::Exp(exponent * math::Log(base));
      } else {
        values[i] *= std::pow(base, exponent);
      }
    }
    RoundRow(values, y + plane * positions + at, count);
  }
};

class LrnKernel final : public Kernel {
 public:
  explicit LrnKernel(const KernelInfo& info)
      : size_(info.attributes.Int("size")),
        alpha_(info.attributes.Float("alpha")),
        beta_(info.attributes.Float("beta")),
        bias_(info.attributes.Float("bias")) {
    NPU_OP_CHECK(kOp, size_ > 0, "expected a size of 1 or more, got ", size_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() >= 2, "expected X [N, C, …], got shape ", x.shape);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    const int64_t channels = x.shape[1], planes = x.shape[0] * channels;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const LrnTask<T> task{x.as<const T>(), y.as<T>(), planes, channels, x.elements() / planes,
                            size_,           alpha_,    beta_,  bias_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  int64_t size_;
  double alpha_, beta_, bias_;
};

NPU_ONNX_KERNEL({
    .type = "LRN",
    .since = 1,
    .until = 13,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {RequiredInt("size"), FloatAttribute("alpha", 1e-4), FloatAttribute("beta", 0.75),
                   FloatAttribute("bias", 1.0)},
    .make = MakeKernel<LrnKernel>,
});

}  // namespace
}  // namespace npu
