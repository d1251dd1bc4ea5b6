#include <cstdint>

#include "ep/kernels/movement/slice_range.h"
#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class SliceKernel : public Kernel {
 public:
  explicit SliceKernel(const KernelInfo& info)
      : from_attributes_(info.since_version < 10),
        starts_(info.attributes.Ints("starts")),
        ends_(info.attributes.Ints("ends")),
        axes_(info.attributes.Ints("axes")) {}
  void Compute(OpContext& ctx) const override {
    if (from_attributes_) {
      Run(ctx, starts_, ends_, axes_, {});
    } else {
      const auto read = [&](size_t i, const char* name) {
        return ctx.Input(i) ? ReadHostInts("Slice", name, ctx.Input(i)) : std::vector<int64_t>{};
      };
      Run(ctx, read(1, "starts"), read(2, "ends"), read(3, "axes"), read(4, "steps"));
    }
  }

 private:
  static void Run(OpContext& ctx, const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                  const std::vector<int64_t>& axes, const std::vector<int64_t>& steps) {
    const TensorView x = ctx.Input(0);
    const size_t count = starts.size();
    NPU_CHECK(
        ends.size() == count && (axes.empty() || axes.size() == count) && (steps.empty() || steps.size() == count),
        "[Slice] expected starts, ends, axes and steps of one length, got ", count, ", ", ends.size(), ", ",
        axes.size(), " and ", steps.size());
    NPU_CHECK(count <= static_cast<size_t>(x.shape.rank()), "[Slice] expected at most one slice per dimension of ",
              x.shape, ", got ", count);
    Shape shape = x.shape;
    auto strides = DenseStrides(x.shape);
    int64_t offset = 0;
    uint32_t seen = 0;
    for (size_t i = 0; i < count; ++i) {
      const int axis = NormalizeAxis("Slice", axes.empty() ? static_cast<int64_t>(i) : axes[i], x.shape.rank());
      NPU_CHECK((seen & (1u << axis)) == 0, "[Slice] expected axes without repetition, got axis ", axis, " twice");
      seen |= 1u << axis;
      // ONNX takes a start before the first element for the first one, with negative steps too; NumPy takes nothing
      // then.
      const int64_t start = std::max(starts[i], -x.shape[axis]);
      const int64_t step = steps.empty() ? 1 : steps[i], end = step < 0 ? LastBackwards(ends[i]) : ends[i];
      const SliceRange range = ResolveSliceRange("Slice", start, end, step, x.shape[axis]);
      shape[axis] = range.count;
      if (range.count == 0) continue;
      offset += range.start * strides[axis];
      strides[axis] = range.count == 1 ? 0 : strides[axis] * range.step;  // the step of a single element may be huge
    }
    const TensorView y = ctx.Output(0, x.dtype, shape);
    const size_t size = BytesFor(x.dtype, 1);
    const char* from = x.data == nullptr ? nullptr : x.as<const char>() + offset * static_cast<int64_t>(size);
    LaunchStridedCopy(ctx, "Slice", shape, strides, size, y.data, from);
  }

  // onnxruntime takes the largest integer for the end in either direction, which is before the first element here.
  static int64_t LastBackwards(int64_t end) { return end == INT32_MAX || end == INT64_MAX ? INT64_MIN : end; }

  bool from_attributes_;
  std::vector<int64_t> starts_, ends_, axes_;
};

NPU_ONNX_KERNEL({
    .type = "Slice",
    .since = 1,
    .until = 1,
    .inputs = {Input("data", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntsAttribute("axes"), IntsAttribute("ends"), IntsAttribute("starts")},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<SliceKernel>,
});
NPU_ONNX_KERNEL({
    .type = "Slice",
    .since = 10,
    .until = 13,
    .inputs = {Input("data", kFixedWidth), HostInput("starts", kIndices), HostInput("ends", kIndices),
               OptionalHostInput("axes", kIndices), OptionalHostInput("steps", kIndices)},
    .outputs = {Output("output", kFixedWidth)},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<SliceKernel>,
});

}  // namespace
}  // namespace npu
