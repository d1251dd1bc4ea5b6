// CumSum. float and the 16-bit floats add up in double, integers wrap.
#include <algorithm>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/axis.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

using CumSumTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;

template <class T>
void Accumulate(const T* x, T* y, int64_t n, int64_t stride, int64_t count, bool exclusive) {
  using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  A sums[kRowBlock] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      const T element = x[i * stride + j];
      const A before = sums[j];
      if constexpr (kIsHalf<T>) {
        sums[j] += static_cast<A>(ToFloat(element));
        y[i * stride + j] = FromFloat<T>(static_cast<float>(exclusive ? before : sums[j]));
      } else {
        sums[j] += static_cast<A>(element);
        y[i * stride + j] = static_cast<T>(exclusive ? before : sums[j]);
      }
    }
  }
}

class CumSumKernel : public Kernel {
 public:
  explicit CumSumKernel(const KernelInfo& info)
      : exclusive_(info.attributes.Bool("exclusive")), reverse_(info.attributes.Bool("reverse")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis("CumSum", ReadHostInt("CumSum", "axis", ctx.Input(1)), x.shape.rank());
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    const AxisView view = ViewAround(x.shape, axis);
    DispatchTypes("CumSum", x.dtype, CumSumTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch("CumSum", [=, exclusive = exclusive_, reverse = reverse_, px = x.as<const T>(), py = y.as<T>()] {
        const int64_t blocks = (view.inner + kRowBlock - 1) / kRowBlock;
        const int64_t grain = RowGrain(view.n * std::min(view.inner, kRowBlock));
        // Backwards is forwards from the last row with a negative stride.
        const int64_t start = reverse ? (view.n - 1) * view.inner : 0;
        const int64_t stride = reverse ? -view.inner : view.inner;
        ParallelFor(view.outer * blocks, grain, [=](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const int64_t first = b % blocks * kRowBlock;
            const int64_t offset = b / blocks * view.n * view.inner + start + first;
            Accumulate(px + offset, py + offset, view.n, stride, std::min(kRowBlock, view.inner - first), exclusive);
          }
        });
      });
    });
  }

 private:
  bool exclusive_, reverse_;
};

constexpr DTypeSet kCumSumTypes = SetOf(CumSumTypes{});

NPU_ONNX_KERNEL({
    .type = "CumSum",
    .since = 11,
    .until = 14,
    .inputs = {Input("x", kCumSumTypes), HostInput("axis", kIndices)},
    .outputs = {Output("y", kCumSumTypes)},
    .attributes = {IntAttribute("exclusive", 0), IntAttribute("reverse", 0)},
    .may_alias = {{0, 0}},
    .make = MakeKernel<CumSumKernel>,
});

}  // namespace
}  // namespace npu
