// Pad: constant, reflect, edge and wrap; negative pads crop.
#include <algorithm>
#include <limits>
#include <string>

#include "ep/kernels/movement/mapped_copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

enum class Mode { kConstant, kReflect, kEdge, kWrap };

bool ParseMode(const std::string& name, Mode* mode) {
  if (name == "constant")
    *mode = Mode::kConstant;
  else if (name == "reflect")
    *mode = Mode::kReflect;
  else if (name == "edge")
    *mode = Mode::kEdge;
  else if (name == "wrap")
    *mode = Mode::kWrap;
  else
    return false;
  return true;
}

// The input coordinate of coordinate i of an infinitely padded axis, or -1. What wraps around is the axis that negative
// pads have left, [begin, end), as in onnxruntime.
int64_t SourceOf(Mode mode, int64_t i, int64_t dim, int64_t begin, int64_t end) {
  if (i >= begin && i < end) return i;
  switch (mode) {
    case Mode::kConstant:
      return -1;
    case Mode::kEdge:
      return i < 0 ? 0 : dim - 1;
    case Mode::kWrap: {
      const int64_t left = end - begin;
      return begin + (((i - begin) % left) + left) % left;
    }
    case Mode::kReflect:
      break;
  }
  if (dim == 1) return 0;
  const int64_t period = 2 * (dim - 1);
  const int64_t at = ((i % period) + period) % period;
  return at < dim ? at : period - at;
}

// The padded dimension.
int64_t PaddedDim(Mode mode, int axis, int64_t before, int64_t after, int64_t dim) {
  // Bounds that keep every sum below in range; no tensor comes near them.
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 8;
  NPU_CHECK(before > -kLimit && before < kLimit && after > -kLimit && after < kLimit && dim < kLimit,
            "[Pad] expected pads that leave a dimension in range, got ", before, " and ", after, " for axis ", axis);
  const int64_t out = dim + before + after;
  NPU_CHECK(out >= 0, "[Pad] expected pads that leave a dimension >= 0, got ", before, " and ", after, " for axis ",
            axis, " of ", dim);
  const int64_t left = mode == Mode::kWrap ? std::min({dim, dim + before, dim + after}) : dim;
  NPU_CHECK(mode == Mode::kConstant || left > 0 || out == 0, "[Pad] expected elements to repeat along axis ", axis,
            ", got none of ", dim, " with pads ", before, " and ", after);
  return out;
}

class PadKernel : public Kernel {
 public:
  explicit PadKernel(const KernelInfo& info) {
    const std::string mode = info.attributes.String("mode");
    NPU_CHECK(ParseMode(mode, &mode_), "[Pad] expected mode constant, reflect, edge or wrap, got ", mode);
  }
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    const std::vector<int64_t> pads = ReadHostInts("Pad", "pads", ctx.Input(1));
    const TensorView value = ctx.Input(2);
    NPU_CHECK(!value || (value.dtype == x.dtype && value.elements() == 1), "[Pad] expected constant_value to be one ",
              NameOf(x.dtype), ", got ", NameOf(value.dtype), " of shape ", value.shape);
    std::vector<int64_t> axes;
    if (ctx.Input(3)) {
      axes = ReadHostInts("Pad", "axes", ctx.Input(3));
    } else {
      for (int d = 0; d < rank; ++d) axes.push_back(d);
    }
    NPU_CHECK(pads.size() == 2 * axes.size(), "[Pad] expected two pads for each of ", axes.size(), " axes, got ",
              pads.size());
    std::array<int64_t, Shape::kMaxRank> before{}, after{};
    uint32_t seen = 0;
    for (size_t i = 0; i < axes.size(); ++i) {
      const int axis = NormalizeAxis("Pad", axes[i], rank);
      NPU_CHECK((seen & (1u << axis)) == 0, "[Pad] expected axes without repetition, got axis ", axis, " twice");
      seen |= 1u << axis;
      before[axis] = pads[i];
      after[axis] = pads[i + axes.size()];
    }
    Shape shape;
    for (int d = 0; d < rank; ++d) shape.push_back(PaddedDim(mode_, d, before[d], after[d], x.shape[d]));
    const TensorView y = ctx.Output(0, x.dtype, shape);  // an absurd size fails here, before its maps are made
    if (y.elements() == 0) return;
    std::vector<AxisMap> maps(rank);
    for (int d = 0; d < rank; ++d) {
      maps[d].resize(shape[d]);
      const int64_t dim = x.shape[d], begin = std::max<int64_t>(0, -before[d]),
                    end = dim + std::min<int64_t>(0, after[d]);
      for (int64_t i = 0; i < shape[d]; ++i) maps[d][i] = SourceOf(mode_, i - before[d], dim, begin, end);
    }
    LaunchMappedCopy(ctx, "Pad", x, y, std::move(maps), value ? value.data : nullptr);
  }

 private:
  Mode mode_ = Mode::kConstant;
};

OpDef PadDef(int since, int until, std::vector<ArgDef> inputs) {
  return {
      .type = "Pad",
      .since = since,
      .until = until,
      .inputs = std::move(inputs),
      .outputs = {Output("output", kFixedWidth)},
      .attributes = {StringAttribute("mode", "constant")},
      .make = MakeKernel<PadKernel>,
      .unsupported = [](const NodeView& node) -> std::string {
        Mode mode;
        const std::string name = node.attributes.String("mode");
        return ParseMode(name, &mode) ? "" : "Pad with mode \"" + name + "\" is not implemented";
      },
  };
}

NPU_ONNX_KERNEL(PadDef(11, 13,
                       {Input("data", kFixedWidth), HostInput("pads", {DType::kInt64}),
                        OptionalInput("constant_value", kFixedWidth)}));
NPU_ONNX_KERNEL(PadDef(18, 25,
                       {Input("data", kFixedWidth), HostInput("pads", {DType::kInt64}),
                        OptionalInput("constant_value", kFixedWidth), OptionalHostInput("axes", kIndices)}));

}  // namespace
}  // namespace npu
