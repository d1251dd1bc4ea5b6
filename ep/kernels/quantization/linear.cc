// QuantizeLinear and DequantizeLinear (ai.onnx 10 to 25): integers of 8 and 16 bits, and of 4 and 32 to dequantise,
// with one scale for all elements, one for each position along an axis, or one for each block of these. Computed in
// float32.
#include <algorithm>
#include <string>
#include <vector>

#include "ep/kernels/elementwise/widen.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/quantization/rounding.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr DTypeSet kScales = kFloats;
constexpr DTypeSet kQuantized{DType::kInt8, DType::kUInt8, DType::kInt16, DType::kUInt16};
constexpr DTypeSet kInts4{DType::kInt4, DType::kUInt4};
constexpr DTypeSet kDequantizable = kQuantized | kInts4 | DTypeSet{DType::kInt32};
using QuantizedTypes = Types<int8_t, uint8_t, int16_t, uint16_t>;
using DequantizableTypes = Types<int8_t, uint8_t, int16_t, uint16_t, int32_t>;

// Which scale each element has: [outer, length, inner] elements, of whose middle axis `block` neighbours share one.
struct Layout {
  enum class Granularity { kTensor, kAxis, kBlock } granularity = Granularity::kTensor;
  int64_t outer = 1, length = 1, inner = 1, block = 1;

  int64_t elements() const { return outer * length * inner; }

  // f(first element, count, its scale, step from scale to scale) for runs of elements, on the pool.
  template <class F>
  void ForEachRun(const F& f) const {
    if (granularity == Granularity::kTensor) {
      ForRuns((elements() + kRowBlock - 1) / kRowBlock, kRowBlock,
              [&](int64_t run) { f(run * kRowBlock, std::min(kRowBlock, elements() - run * kRowBlock), 0, 0); });
    } else if (granularity == Granularity::kAxis && inner == 1) {
      ForRuns(outer, length, [&](int64_t run) { f(run * length, length, 0, 1); });
    } else if (granularity == Granularity::kAxis) {
      ForRuns(outer * length, inner, [&](int64_t run) { f(run * inner, inner, run % length, 0); });
    } else if (inner == 1) {
      ForRuns(outer * Blocks(), block, [&](int64_t run) {
        const int64_t first = run % Blocks() * block;
        f(run / Blocks() * length + first, std::min(block, length - first), run, 0);
      });
    } else {
      ForRuns(outer * length, inner,
              [&](int64_t run) { f(run * inner, inner, (run / length * Blocks() + run % length / block) * inner, 1); });
    }
  }
  int64_t Blocks() const { return (length + block - 1) / block; }

 private:
  template <class F>
  static void ForRuns(int64_t runs, int64_t each, const F& f) {
    ParallelFor(runs, RowGrain(each), [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) f(run);
    });
  }
};

Layout LayoutOf(const char* op, const Shape& x, const TensorView& scale, const TensorView& point, int64_t given_axis,
                int64_t block) {
  NPU_CHECK(!point || point.shape == scale.shape || (point.elements() == 1 && scale.elements() == 1), "[", op,
            "] expected zero points of the scales' shape ", scale.shape, ", got ", point.shape);
  NPU_CHECK(block >= 0, "[", op, "] expected a block_size of 0 or more, got ", block);
  Layout layout;
  if (block == 0 && scale.elements() == 1 && scale.shape.rank() <= 1) {
    layout.length = x.Elements();
    return layout;
  }
  const int axis = NormalizeAxis(op, given_axis, x.rank());
  layout.outer = x.Elements(0, axis);
  layout.length = x[axis];
  layout.inner = x.Elements(axis + 1, x.rank());
  if (block == 0) {
    NPU_CHECK(scale.shape == Shape{layout.length}, "[", op, "] expected a scale, or one for each of the ",
              layout.length, " positions of axis ", axis, ", got shape ", scale.shape);
    layout.granularity = Layout::Granularity::kAxis;
    return layout;
  }
  layout.granularity = Layout::Granularity::kBlock;
  layout.block = std::min(block, std::max<int64_t>(1, layout.length));
  Shape wanted = x;
  wanted[axis] = layout.Blocks();
  NPU_CHECK(scale.shape == wanted, "[", op, "] expected a scale for each ", block, " positions of axis ", axis, ", ",
            wanted, ", got shape ", scale.shape);
  return layout;
}

// Read inside a launch.
std::vector<float> ReadScales(const char* op, const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  DispatchTypes(op, view.dtype, Types<float, Float16, BFloat16>{},
                [&](auto type) { ToFloat(view.as<const decltype(type)>(), values.data(), view.elements()); });
  return values;
}

// `count` zeros if there are none.
template <class T>
std::vector<int32_t> ReadPoints(const TensorView& view, size_t count) {
  std::vector<int32_t> values(count, 0);
  if (view) std::copy_n(view.as<const T>(), count, values.begin());
  return values;
}

// f(0 or 1 as a constant), so that loops with either vectorise.
template <class F>
void WithStep(int64_t step, const F& f) {
  if (step == 0) {
    f(std::integral_constant<int64_t, 0>{});
  } else {
    f(std::integral_constant<int64_t, 1>{});
  }
}

template <class T>
void Quantize(const char* op, const TensorView& x, const TensorView& scale, const TensorView& point,
              const Layout& layout, T* y) {
  constexpr float kLow = std::numeric_limits<T>::lowest(), kHigh = std::numeric_limits<T>::max();
  const std::vector<float> scales = ReadScales(op, scale);
  const std::vector<int32_t> points = ReadPoints<T>(point, scales.size());
  DispatchTypes(op, x.dtype, Types<float, Float16, BFloat16, int32_t>{}, [&](auto type) {
    using X = decltype(type);
    const X* from = x.as<const X>();
    layout.ForEachRun([&](int64_t first, int64_t count, int64_t at, int64_t step) {
      alignas(64) float values[kRowBlock];
      ForEachBlock(count, [&](int64_t begin, int64_t n) {
        const float* by = scales.data() + at + begin * step;
        const int32_t* plus = points.data() + at + begin * step;
        T* to = y + first + begin;
        if constexpr (std::is_same_v<X, int32_t>) {
          for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(from[first + begin + i]);
        } else {
          ToFloat(from + first + begin, values, n);
        }
        WithStep(step, [&](auto stride) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            const float rounded = RoundHalfEven(values[i] / by[i * stride]) + static_cast<float>(plus[i * stride]);
            to[i] = static_cast<T>(RoundSaturated(rounded, kLow, kHigh));
          }
        });
      });
    });
  });
}

template <class T>
void Dequantize(const char* op, const TensorView& x, const TensorView& scale, const TensorView& point,
                const Layout& layout, const TensorView& y) {
  const std::vector<float> scales = ReadScales(op, scale);
  const std::vector<int32_t> points = ReadPoints<T>(point, scales.size());
  const T* from = x.as<const T>();
  DispatchTypes(op, y.dtype, Types<float, Float16, BFloat16>{}, [&](auto type) {
    using Y = decltype(type);
    layout.ForEachRun([&](int64_t first, int64_t count, int64_t at, int64_t step) {
      alignas(64) float values[kRowBlock];
      ForEachBlock(count, [&](int64_t begin, int64_t n) {
        const T* integers = from + first + begin;
        const float* by = scales.data() + at + begin * step;
        const int32_t* minus = points.data() + at + begin * step;
        WithStep(step, [&](auto stride) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            // Wraps for int32, as other implementations do.
            const uint32_t way = static_cast<uint32_t>(integers[i]) - static_cast<uint32_t>(minus[i * stride]);
            values[i] = static_cast<float>(static_cast<int32_t>(way)) * by[i * stride];
          }
        });
        FromFloat(values, y.as<Y>() + first + begin, n);
      });
    });
  });
}

// 4-bit integers as 8-bit ones in scratch memory; others as they are.
TensorView Unpacked(OpContext& ctx, const char* op, const TensorView& packed) {
  if (!kInts4.Contains(packed.dtype)) return packed;
  TensorView view = packed;
  view.dtype = packed.dtype == DType::kInt4 ? DType::kInt8 : DType::kUInt8;
  const int64_t n = packed.elements();
  view.data = ctx.Workspace(static_cast<size_t>(n));
  const int fill = packed.dtype == DType::kInt4 ? 8 : 0;  // the bit of the sign
  ctx.Launch(op, [n, fill, from = packed.as<const uint8_t>(), to = view.as<uint8_t>()] {
    ParallelFor(n, kSerialElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int nibble = (from[i / 2] >> (i % 2 * 4)) & 15;
        to[i] = static_cast<uint8_t>((nibble ^ fill) - fill);
      }
    });
  });
  return view;
}

class QuantizeLinearKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "QuantizeLinear";

  explicit QuantizeLinearKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis", 1)), block_(info.attributes.Int("block_size", 0)) {
    const int64_t type = info.attributes.Int("output_dtype", 0);
    type_ = type == 0 ? DType::kUInt8 : static_cast<DType>(type);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), scale = ctx.Input(1), point = ctx.Input(2);
    const Layout layout = LayoutOf(kOp, x.shape, scale, point, axis_, block_);
    const TensorView y = ctx.Output(0, point ? point.dtype : type_, x.shape);
    if (y.elements() == 0) return;
    DispatchTypes(kOp, y.dtype, QuantizedTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=] { Quantize(kOp, x, scale, point, layout, y.as<T>()); });
    });
  }

 private:
  int64_t axis_, block_;
  DType type_;  // without zero points
};

class DequantizeLinearKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "DequantizeLinear";

  explicit DequantizeLinearKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis", 1)),
        block_(info.attributes.Int("block_size", 0)),
        type_(static_cast<DType>(info.attributes.Int("output_dtype", 0))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), scale = ctx.Input(1), point = ctx.Input(2);
    NPU_CHECK(!point || point.dtype == x.dtype, "[", kOp, "] expected zero points of x's type ", NameOf(x.dtype),
              ", got ", NameOf(point.dtype));
    const Layout layout = LayoutOf(kOp, x.shape, scale, point, axis_, block_);
    const TensorView y = ctx.Output(0, type_ == DType::kUndefined ? scale.dtype : type_, x.shape);
    if (y.elements() == 0) return;
    const TensorView integers = Unpacked(ctx, kOp, x), minus = Unpacked(ctx, kOp, point);
    DispatchTypes(kOp, integers.dtype, DequantizableTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=] { Dequantize<T>(kOp, integers, scale, minus, layout, y); });
    });
  }

 private:
  int64_t axis_, block_;
  DType type_;  // kUndefined: the scale's
};

std::string WhyNotQuantized(const NodeView& node) {
  const int64_t type = node.attributes.Int("output_dtype", 0), precision = node.attributes.Int("precision", 0);
  if (precision != 0 && precision != static_cast<int64_t>(DType::kFloat32))
    return "QuantizeLinear that divides in another type than float32 is not implemented";
  const bool stated = node.inputs.size() > 2 && node.inputs[2] != DType::kUndefined;
  if (!stated && type != 0 && !kQuantized.Contains(static_cast<DType>(type)))
    return "QuantizeLinear to this type is not implemented";
  return "";
}

NPU_ONNX_KERNEL({
    .type = "QuantizeLinear",
    .since = 10,
    .until = 25,
    .inputs = {Input("x", kScales | DTypeSet{DType::kInt32}), Input("y_scale", kScales),
               OptionalInput("y_zero_point", kQuantized)},
    .outputs = {Output("y", kQuantized)},
    .attributes = {IntAttribute("axis", 1), IntAttribute("saturate", 1), IntAttribute("block_size", 0),
                   IntAttribute("output_dtype", 0), IntAttribute("precision", 0)},
    .make = MakeKernel<QuantizeLinearKernel>,
    .unsupported = WhyNotQuantized,
});
NPU_ONNX_KERNEL({
    .type = "DequantizeLinear",
    .since = 10,
    .until = 25,
    .inputs = {Input("x", kDequantizable), Input("x_scale", kScales), OptionalInput("x_zero_point", kDequantizable)},
    .outputs = {Output("y", kScales)},
    .attributes = {IntAttribute("axis", 1), IntAttribute("block_size", 0), IntAttribute("output_dtype", 0)},
    .make = MakeKernel<DequantizeLinearKernel>,
});

}  // namespace
}  // namespace npu
