// Clip: its bounds are device scalars (opset 11 on) or attributes (opset 6). A NaN element stays NaN;
// where min > max, max wins.
#include <limits>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

template <class C>
void ClipRow(const C* x, C low, C high, C* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const C v = x[i] < low ? low : x[i];
    y[i] = v > high ? high : v;
  }
}

template <class T, class C = ComputeType<T>>
void LaunchClip(OpContext& ctx, const TensorView& x, const T* low, const T* high, C low_value, C high_value) {
  const TensorView y = ctx.Output(0, x.dtype, x.shape);
  const int64_t n = x.elements();
  if (n == 0) return;
  ctx.Launch("Clip", [=, px = x.as<const T>(), py = y.as<T>()] {
    const auto read = [](const T* bound, C fallback) { return bound == nullptr ? fallback : Upcast(*bound); };
    const C from = read(low, low_value);
    const C to = read(high, high_value);
    ParallelFor(n, kCheapGrain, [=](int64_t begin, int64_t end) {
      if constexpr (kIsHalf<T>) {
        InBlock<T> in;
        OutBlock<T> out;
        ForEachBlock(end - begin, [&](int64_t i, int64_t count) {
          ClipRow(in.Load(px + begin + i, count), from, to, out.Values(py + begin + i), count);
          out.Commit(py + begin + i, count);
        });
      } else {
        ClipRow(px + begin, from, to, py + begin, end - begin);
      }
    });
  });
}

template <class C>
constexpr C Lowest() {
  return std::numeric_limits<C>::has_infinity ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::lowest();
}
template <class C>
constexpr C Highest() {
  return std::numeric_limits<C>::has_infinity ? std::numeric_limits<C>::infinity() : std::numeric_limits<C>::max();
}

class ClipKernel : public Kernel {
 public:
  explicit ClipKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    DispatchTypes("Clip", x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      LaunchClip<T>(ctx, x, Bound<T>(ctx, x, 1, "min"), Bound<T>(ctx, x, 2, "max"), Lowest<C>(), Highest<C>());
    });
  }

 private:
  template <class T>
  static const T* Bound(OpContext& ctx, const TensorView& x, size_t i, const char* name) {
    const TensorView bound = ctx.Input(i);
    if (!bound) return nullptr;
    NPU_CHECK(bound.dtype == x.dtype, "[Clip] expected ", name, " of the input's type ", NameOf(x.dtype), ", got ",
              NameOf(bound.dtype));
    NPU_CHECK(bound.elements() == 1, "[Clip] expected ", name, " to be a scalar, got shape ", bound.shape);
    return bound.as<const T>();
  }
};

class ClipAttributesKernel : public Kernel {
 public:
  explicit ClipAttributesKernel(const KernelInfo& info)
      : low_(info.attributes.Float("min")), high_(info.attributes.Float("max")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    DispatchTypes("Clip", x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      LaunchClip<T>(ctx, x, nullptr, nullptr, static_cast<C>(low_), static_cast<C>(high_));
    });
  }

 private:
  double low_, high_;
};

constexpr DTypeSet kFloatTypes = SetOf(FloatTypes{});

NPU_ONNX_KERNEL({
    .type = "Clip",
    .since = 6,
    .until = 6,
    .inputs = {Input("input", kFloatTypes)},
    .outputs = {Output("output", kFloatTypes)},
    .attributes = {FloatAttribute("max", Highest<double>()), FloatAttribute("min", Lowest<double>())},
    .may_alias = {{0, 0}},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<ClipAttributesKernel>,
});
NPU_ONNX_KERNEL({
    .type = "Clip",
    .since = 11,
    .until = 13,
    .inputs = {Input("input", kNumeric), OptionalInput("min", kNumeric), OptionalInput("max", kNumeric)},
    .outputs = {Output("output", kNumeric)},
    .may_alias = {{0, 0}},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<ClipKernel>,
});

}  // namespace
}  // namespace npu
