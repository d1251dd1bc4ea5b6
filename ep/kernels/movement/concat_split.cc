// Concat and Split: rows of bytes between one wide tensor and several narrow ones.
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

// One narrow tensor and its offset in a row of the wide one.
struct Part {
  char* data;
  int64_t offset, width;  // bytes
};

class ConcatKernel : public Kernel {
 public:
  explicit ConcatKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}
  void Compute(OpContext& ctx) const override {
    const size_t count = ctx.input_count();
    NPU_CHECK(count > 0, "[Concat] expected at least one input, got none");
    const TensorView first = ctx.Input(0);
    const int axis = NormalizeAxis("Concat", axis_, first.shape.rank());
    Shape shape = first.shape;
    for (size_t i = 1; i < count; ++i) {
      const TensorView x = ctx.Input(i);
      NPU_CHECK(x.dtype == first.dtype, "[Concat] expected inputs of one type, got ", NameOf(first.dtype), " and ",
                NameOf(x.dtype));
      Shape expected = x.shape;
      if (expected.rank() == shape.rank()) expected[axis] = first.shape[axis];
      NPU_CHECK(expected == first.shape, "[Concat] expected shapes that agree but for axis ", axis, ", got ",
                first.shape, " and ", x.shape);
      NPU_CHECK(!__builtin_add_overflow(shape[axis], x.shape[axis], &shape[axis]),
                "[Concat] expected a result whose dimensions fit int64");
    }
    const TensorView y = ctx.Output(0, first.dtype, shape);
    if (y.elements() == 0) return;
    const int64_t size = BitsOf(first.dtype) / 8;
    const int64_t inner = shape.Elements(axis + 1, shape.rank()) * size;
    std::vector<Part> parts;
    int64_t pitch = 0;
    for (size_t i = 0; i < count; ++i) {
      const TensorView x = ctx.Input(i);
      parts.push_back({x.as<char>(), pitch, x.shape[axis] * inner});
      pitch += parts.back().width;
    }
    ctx.Launch("Concat", [parts = std::move(parts), pitch, rows = shape.Elements(0, axis), to = y.as<char>()] {
      for (const Part& part : parts) CopyRows(to + part.offset, pitch, part.data, part.width, part.width, rows);
    });
  }

 private:
  int64_t axis_;
};

class SplitKernel : public Kernel {
 public:
  explicit SplitKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis")),
        attribute_(info.attributes.Ints("split")),
        num_outputs_(info.attributes.Int("num_outputs", 0)),
        even_(info.since_version < 18) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis("Split", axis_, x.shape.rank());
    const std::vector<int64_t> sizes = Sizes(ctx, x.shape[axis]);
    const int64_t inner = x.shape.Elements(axis + 1, x.shape.rank()) * (BitsOf(x.dtype) / 8);
    std::vector<Part> parts;
    int64_t offset = 0;
    Shape shape = x.shape;
    for (size_t i = 0; i < sizes.size(); ++i) {
      shape[axis] = sizes[i];
      const TensorView y = ctx.Output(i, x.dtype, shape);
      if (y && y.data != nullptr) parts.push_back({y.as<char>(), offset, sizes[i] * inner});
      offset += sizes[i] * inner;
    }
    if (parts.empty()) return;
    ctx.Launch("Split",
               [parts = std::move(parts), pitch = offset, rows = x.shape.Elements(0, axis), from = x.as<const char>()] {
                 for (const Part& part : parts)
                   CopyRows(part.data, part.width, from + part.offset, pitch, part.width, rows);
               });
  }

 private:
  // The sizes along the axis: as given, or equal, with a smaller last one if the axis does not divide evenly.
  std::vector<int64_t> Sizes(OpContext& ctx, int64_t dim) const {
    const TensorView given = ctx.Input(1);
    const auto outputs = static_cast<int64_t>(ctx.output_count());
    std::vector<int64_t> sizes = given ? ReadHostInts("Split", "split", given) : attribute_;
    if (given || !attribute_.empty()) {
      int64_t rest = dim;
      for (int64_t size : sizes) {
        NPU_CHECK(size >= 0 && size <= rest, "[Split] expected sizes that add up to ", dim, ", got ", size, " of ",
                  rest, " left");
        rest -= size;
      }
      NPU_CHECK(rest == 0, "[Split] expected sizes that add up to ", dim, ", got ", dim - rest);
      NPU_CHECK(static_cast<int64_t>(sizes.size()) == outputs, "[Split] expected a size for each of ", outputs,
                " outputs, got ", sizes.size());
      return sizes;
    }
    const int64_t count = num_outputs_ > 0 ? num_outputs_ : outputs;
    NPU_CHECK(count == outputs, "[Split] expected num_outputs to be the number of outputs, ", outputs, ", got ", count);
    NPU_CHECK(!even_ || dim % count == 0, "[Split] expected a dimension that splits evenly in ", count, ", got ", dim);
    const int64_t chunk = (dim + count - 1) / count;
    for (int64_t left = dim, i = 0; i < count; ++i) {
      sizes.push_back(std::min(chunk, left));
      left -= sizes.back();
    }
    return sizes;
  }

  int64_t axis_;
  std::vector<int64_t> attribute_;
  int64_t num_outputs_;
  bool even_;  // before opset 18 a remainder was an error
};

constexpr DTypeSet kInt64{DType::kInt64};

OpDef SplitDef(int since, int until, std::vector<ArgDef> inputs, std::vector<AttrDef> attributes) {
  return {
      .type = "Split",
      .since = since,
      .until = until,
      .inputs = std::move(inputs),
      .outputs = {VariadicOutput("outputs", kFixedWidth)},
      .attributes = std::move(attributes),
      .shape_arithmetic = ShapeArithmetic::kFirst,
      .make = MakeKernel<SplitKernel>,
  };
}

NPU_ONNX_KERNEL({
    .type = "Concat",
    .since = 4,
    .until = 13,
    .inputs = {VariadicInput("inputs", kFixedWidth)},
    .outputs = {Output("concat_result", kFixedWidth)},
    .attributes = {RequiredInt("axis")},
    .shape_arithmetic = ShapeArithmetic::kSum,
    .make = MakeKernel<ConcatKernel>,
});
NPU_ONNX_KERNEL(SplitDef(2, 11, {Input("input", kFixedWidth)}, {IntAttribute("axis", 0), IntsAttribute("split")}));
NPU_ONNX_KERNEL(SplitDef(13, 13, {Input("input", kFixedWidth), OptionalHostInput("split", kInt64)},
                         {IntAttribute("axis", 0)}));
NPU_ONNX_KERNEL(SplitDef(18, 18, {Input("input", kFixedWidth), OptionalHostInput("split", kInt64)},
                         {IntAttribute("axis", 0), IntAttribute("num_outputs")}));

}  // namespace
}  // namespace npu
