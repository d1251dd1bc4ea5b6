// QuantizeLinear and DequantizeLinear (ai.onnx 10 to 25): integers of 2 to 16 bits, and of 32 to dequantise, and floats
// of 4 and 8, with one scale for all elements, one for each position along an axis, or one for each block of these.
// Computed in float32.
#include "ep/kernels/quantization/linear.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/rounding.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr DTypeSet kScales = kFloats | DTypeSet{DType::kFloat8E8M0};
constexpr DTypeSet kQuantized =
    DTypeSet{DType::kInt8, DType::kUInt8, DType::kInt16, DType::kUInt16} | kNarrowIntegers | kNarrowFloats;
constexpr DTypeSet kDequantizable = kQuantized | DTypeSet{DType::kInt32};
// Loops compute these; narrow types are unpacked before or packed after them.
using QuantizedTypes = Types<int8_t, uint8_t, int16_t, uint16_t, float>;
using DequantizableTypes = Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, float>;

// The type that loops compute a narrow type as.
DType UnpackedType(DType dtype) {
  if (kNarrowFloats.Contains(dtype)) return DType::kFloat32;
  if (!kNarrowIntegers.Contains(dtype)) return dtype;
  return dtype == DType::kInt4 || dtype == DType::kInt2 ? DType::kInt8 : DType::kUInt8;
}

// The integers of a quantised type.
struct Range {
  float low, high;

  static Range Of(DType dtype) {
    const bool is_unsigned =
        dtype == DType::kUInt8 || dtype == DType::kUInt16 || dtype == DType::kUInt4 || dtype == DType::kUInt2;
    const auto count = static_cast<float>(1 << BitsOf(dtype));
    return is_unsigned ? Range{0, count - 1} : Range{-count / 2, count / 2 - 1};
  }
};

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
  NPU_OP_CHECK(op, !point || point.shape == scale.shape || (point.elements() == 1 && scale.elements() == 1),
               "expected zero points of the scales' shape ", scale.shape, ", got ", point.shape);
  NPU_OP_CHECK(op, block >= 0, "expected a block_size of 0 or more, got ", block);
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
    NPU_OP_CHECK(op, scale.shape == Shape{layout.length}, "expected a scale, or one for each of the ", layout.length,
                 " positions of axis ", axis, ", got shape ", scale.shape);
    layout.granularity = Layout::Granularity::kAxis;
    return layout;
  }
  layout.granularity = Layout::Granularity::kBlock;
  layout.block = std::min(block, std::max<int64_t>(1, layout.length));
  Shape wanted = x;
  wanted[axis] = layout.Blocks();
  NPU_OP_CHECK(op, scale.shape == wanted, "expected a scale for each ", block, " positions of axis ", axis, ", ",
               wanted, ", got shape ", scale.shape);
  return layout;
}

// Read inside a launch.
std::vector<float> ReadScales(const char* op, const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  if (view.dtype == DType::kFloat8E8M0) {
    UpcastNarrow(view.dtype, view.data, 0, view.elements(), values.data());
    return values;
  }
  DispatchTypes(op, view.dtype, Types<float, Float16, BFloat16>{},
                [&](auto type) { ToFloat(view.as<const decltype(type)>(), values.data(), view.elements()); });
  return values;
}

// `count` zeros if there are none. Floats have no other: the standard leaves it open what those would mean.
template <class T>
std::vector<int32_t> ReadPoints(const char* op, const TensorView& view, size_t count) {
  std::vector<int32_t> values(count, 0);
  for (size_t i = 0; view && i < count; ++i) {
    const T value = view.as<const T>()[i];
    if constexpr (std::is_same_v<T, float>) {
      NPU_OP_CHECK(op, value == 0, "expected zero points of 0 for floats, got ", value);
    } else {
      values[i] = value;
    }
  }
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
              const Layout& layout, Range range, T* y) {
  const std::vector<float> scales = ReadScales(op, scale);
  const std::vector<int32_t> points = ReadPoints<T>(op, point, scales.size());
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
            const float scaled = values[i] / by[i * stride];
            if constexpr (std::is_same_v<T, float>) {
              to[i] = scaled;
            } else {
              const float rounded = RoundHalfEven(scaled) + static_cast<float>(plus[i * stride]);
              to[i] = static_cast<T>(RoundSaturated(rounded, range.low, range.high));
            }
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
  const std::vector<int32_t> points = ReadPoints<T>(op, point, scales.size());
  const T* from = x.as<const T>();
  DispatchTypes(op, y.dtype, Types<float, Float16, BFloat16>{}, [&](auto type) {
    using Y = decltype(type);
    layout.ForEachRun([&](int64_t first, int64_t count, int64_t at, int64_t step) {
      alignas(64) float values[kRowBlock];
      ForEachBlock(count, [&](int64_t begin, int64_t n) {
        const T* quantized = from + first + begin;
        const float* by = scales.data() + at + begin * step;
        const int32_t* minus = points.data() + at + begin * step;
        WithStep(step, [&](auto stride) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            if constexpr (std::is_same_v<T, float>) {
              values[i] = quantized[i] * by[i * stride];
            } else {
              // Wraps for int32, as other implementations do.
              const uint32_t way = static_cast<uint32_t>(quantized[i]) - static_cast<uint32_t>(minus[i * stride]);
              values[i] = static_cast<float>(static_cast<int32_t>(way)) * by[i * stride];
            }
          }
        });
        FromFloat(values, y.as<Y>() + first + begin, n);
      });
    });
  });
}

// Scratch memory for a narrow tensor in its UnpackedType; others as they are.
TensorView UnpackedRoom(OpContext& ctx, const TensorView& packed) {
  TensorView view = packed;
  view.dtype = UnpackedType(packed.dtype);
  if (view.dtype != packed.dtype && packed) view.data = ctx.Workspace(BytesFor(view.dtype, packed.elements()));
  return view;
}

TensorView Unpacked(OpContext& ctx, const char* op, const TensorView& packed) {
  const TensorView view = UnpackedRoom(ctx, packed);
  if (view.dtype == packed.dtype || !packed) return view;
  ctx.Launch(op, [view, packed] {
    ForNarrowBlocks(packed.elements(), [&](int64_t first, int64_t count) {
      if (view.dtype == DType::kFloat32) {
        UpcastNarrow(packed.dtype, packed.data, first, count, view.as<float>() + first);
      } else {
        UnpackIntegers(packed.dtype, packed.data, first, count, view.as<uint8_t>() + first);
      }
    });
  });
  return view;
}

void Pack(OpContext& ctx, const char* op, const TensorView& view, const TensorView& packed, bool saturate) {
  if (view.dtype == packed.dtype) return;
  ctx.Launch(op, [=] {
    ForNarrowBlocks(packed.elements(), [&](int64_t first, int64_t count) {
      if (view.dtype == DType::kFloat32) {
        NarrowFloats(packed.dtype, {.saturate = saturate}, view.as<const float>() + first, first, count, packed.data);
      } else {
        PackIntegers(packed.dtype, view.as<const uint8_t>() + first, first, count, packed.data);
      }
    });
  });
}

class QuantizeLinearKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "QuantizeLinear";

  explicit QuantizeLinearKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis", 1)),
        block_(info.attributes.Int("block_size", 0)),
        saturate_(info.attributes.Bool("saturate", true)) {
    const int64_t type = info.attributes.Int("output_dtype", 0);
    type_ = type == 0 ? DType::kUInt8 : static_cast<DType>(type);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), scale = ctx.Input(1), point = ctx.Input(2);
    const Layout layout = LayoutOf(kOp, x.shape, scale, point, axis_, block_);
    const TensorView y = ctx.Output(0, point ? point.dtype : type_, x.shape);
    NPU_OP_CHECK(kOp, kQuantized.Contains(y.dtype), "expected output_dtype to be a quantised type, got ",
                 NameOf(y.dtype));
    if (y.elements() == 0) return;
    const TensorView plus = Unpacked(ctx, kOp, point), unpacked = UnpackedRoom(ctx, y);
    const Range range = Range::Of(y.dtype);
    DispatchTypes(kOp, unpacked.dtype, QuantizedTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=] { Quantize(kOp, x, scale, plus, layout, range, unpacked.as<T>()); });
    });
    Pack(ctx, kOp, unpacked, y, saturate_);
  }

 private:
  int64_t axis_, block_;
  bool saturate_;  // of 8-bit floats; all others do
  DType type_;     // without zero points
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
    NPU_OP_CHECK(kOp, !point || point.dtype == x.dtype, "expected zero points of x's type ", NameOf(x.dtype), ", got ",
                 NameOf(point.dtype));
    const Layout layout = LayoutOf(kOp, x.shape, scale, point, axis_, block_);
    const TensorView y = ctx.Output(0, type_ == DType::kUndefined ? scale.dtype : type_, x.shape);
    if (y.elements() == 0) return;
    const TensorView unpacked = Unpacked(ctx, kOp, x), minus = Unpacked(ctx, kOp, point);
    DispatchTypes(kOp, unpacked.dtype, DequantizableTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=] { Dequantize<T>(kOp, unpacked, scale, minus, layout, y); });
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

std::string WhyNotDequantized(const NodeView& node) {
  const auto type = static_cast<DType>(node.attributes.Int("output_dtype"));
  if (kFloats.Contains(type) || (type == DType::kUndefined && node.inputs[1] != DType::kFloat8E8M0)) return "";
  return "DequantizeLinear to another type than float32, float16 and bfloat16 is not implemented";
}

}  // namespace

std::unique_ptr<Kernel> MakeQuantizeLinear(const KernelInfo& info) {
  return std::make_unique<QuantizeLinearKernel>(info);
}
std::unique_ptr<Kernel> MakeDequantizeLinear(const KernelInfo& info) {
  return std::make_unique<DequantizeLinearKernel>(info);
}

namespace {

NPU_ONNX_KERNEL({
    .type = "QuantizeLinear",
    .since = 10,
    .until = 25,
    .inputs = {Input("x", kFloats | DTypeSet{DType::kInt32}), Input("y_scale", kScales),
               OptionalInput("y_zero_point", kQuantized)},
    .outputs = {Output("y", kQuantized)},
    .attributes = {IntAttribute("axis", 1), IntAttribute("saturate", 1), IntAttribute("block_size", 0),
                   IntAttribute("output_dtype", 0), IntAttribute("precision", 0)},
    .make = &MakeQuantizeLinear,
    .unsupported = WhyNotQuantized,
});
NPU_ONNX_KERNEL({
    .type = "DequantizeLinear",
    .since = 10,
    .until = 25,
    .inputs = {Input("x", kDequantizable), Input("x_scale", kScales), OptionalInput("x_zero_point", kDequantizable)},
    .outputs = {Output("y", kFloats)},
    .attributes = {IntAttribute("axis", 1), IntAttribute("block_size", 0), IntAttribute("output_dtype", 0)},
    .make = &MakeDequantizeLinear,
    .unsupported = WhyNotDequantized,
});

}  // namespace
}  // namespace npu
