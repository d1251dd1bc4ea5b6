// Range: its inputs decide the shape, so they are in host memory.
#include <cmath>
#include <string>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

using RangeTypes = Types<float, double, Float16, BFloat16, int16_t, int32_t, int64_t>;

template <class T>
int64_t CountOf(T start, T limit, T delta) {
  NPU_CHECK(delta != 0, "[Range] expected delta not to be 0, got 0");
  if constexpr (std::is_integral_v<T>) {
    if (delta > 0 ? limit <= start : limit >= start) return 0;
    // The distance fits uint64_t for all signs.
    const uint64_t distance = delta > 0 ? static_cast<uint64_t>(limit) - static_cast<uint64_t>(start)
                                        : static_cast<uint64_t>(start) - static_cast<uint64_t>(limit);
    const uint64_t step = delta > 0 ? static_cast<uint64_t>(delta) : uint64_t{0} - static_cast<uint64_t>(delta);
    const uint64_t count = (distance - 1) / step + 1;
    NPU_CHECK(count >> 62 == 0, "[Range] expected a range that fits memory, got ", count, " elements");
    return static_cast<int64_t>(count);
  } else {
    const double count =
        std::ceil((static_cast<double>(limit) - static_cast<double>(start)) / static_cast<double>(delta));
    NPU_CHECK(count < 0x1p62, "[Range] expected finite start, limit and delta, got ", start, ", ", limit, ", ", delta);
    return count > 0 ? static_cast<int64_t>(count) : 0;
  }
}

// 16-bit floats as float.
template <class T>
auto Value(const TensorView& scalar) {
  const T value = *scalar.as<const T>();
  if constexpr (kIsHalf<T>) {
    return Upcast(value);
  } else {
    return value;
  }
}

class RangeKernel : public Kernel {
 public:
  explicit RangeKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView first = ctx.Input(0);
    for (size_t i = 0; i < 3; ++i) {
      const TensorView x = ctx.Input(i);
      NPU_CHECK(x.dtype == first.dtype && x.elements() == 1,
                "[Range] expected start, limit and delta to be scalars of one type, got ", NameOf(x.dtype),
                " of shape ", x.shape);
    }
    DispatchTypes("Range", first.dtype, RangeTypes{}, [&](auto type) {
      using T = decltype(type);
      const auto start = Value<T>(first), delta = Value<T>(ctx.Input(2));
      const int64_t n = CountOf(start, Value<T>(ctx.Input(1)), delta);
      const TensorView y = ctx.Output(0, first.dtype, Shape{n});
      if (n == 0) return;
      ctx.Launch("Range", [=, py = y.as<T>()] {
        // Each element separately, in double for float: errors do not accumulate along the range.
        using C = std::conditional_t<std::is_integral_v<std::remove_const_t<decltype(start)>>, uint64_t, double>;
        ParallelFor(n, kCheapGrain, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const C value = static_cast<C>(start) + static_cast<C>(i) * static_cast<C>(delta);
            if constexpr (kIsHalf<T>) {
              py[i] = Rounded<T>(static_cast<float>(value));
            } else {
              py[i] = static_cast<T>(value);
            }
          }
        });
      });
    });
  }
};

constexpr DTypeSet kRangeTypes = SetOf(RangeTypes{});

NPU_ONNX_KERNEL({
    .type = "Range",
    .since = 11,
    .until = 27,
    .inputs = {HostInput("start", kRangeTypes), HostInput("limit", kRangeTypes), HostInput("delta", kRangeTypes)},
    .outputs = {Output("output", kRangeTypes)},
    .attributes = {IntAttribute("stash_type", 1)},
    .shape_arithmetic = ShapeArithmetic::kStated,
    .make = MakeKernel<RangeKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      return node.attributes.Int("stash_type", 1) == 1 ? "" : "16-bit floats are computed as float32 at least";
    },
});

}  // namespace
}  // namespace npu
