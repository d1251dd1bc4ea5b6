// Pad: constant, reflect, edge and wrap; negative pads crop.
#include <string>

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/movement/mapped_copy.h"
#include "ep/kernels/movement/pad_axis.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class PadKernel : public Kernel {
 public:
  explicit PadKernel(const KernelInfo& info)
      : pads_(info.attributes.Ints("pads")), value_(info.attributes.Float("value", 0)) {
    const std::string mode = info.attributes.String("mode");
    NPU_CHECK(ParsePadMode(mode, &mode_), "[Pad] expected mode constant, reflect, edge or wrap, got ", mode);
  }
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    const std::vector<int64_t> pads = ctx.Input(1) ? ReadHostInts("Pad", "pads", ctx.Input(1)) : pads_;
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
    for (int d = 0; d < rank; ++d) shape.push_back(PaddedDim("Pad", mode_, d, before[d], after[d], x.shape[d]));
    const TensorView y = ctx.Output(0, x.dtype, shape);  // an excessive size fails here, before maps are made
    if (y.elements() == 0) return;
    std::vector<AxisMap> maps(rank);
    for (int d = 0; d < rank; ++d) maps[d] = PadMap(mode_, x.shape[d], before[d], after[d]);
    LaunchMappedCopy(ctx, "Pad", x, y, std::move(maps), value ? value.data : LaunchFill(ctx, x.dtype));
  }

 private:
  // The attribute as an element in device memory; null for 0.
  const void* LaunchFill(OpContext& ctx, DType dtype) const {
    if (value_ == 0) return nullptr;
    void* fill = ctx.Workspace(BytesFor(dtype, 1));
    DispatchTypes("Pad", dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch("Pad",
                 [fill, value = value_] { *static_cast<T*>(fill) = Rounded<T>(static_cast<ComputeType<T>>(value)); });
    });
    return fill;
  }

  PadMode mode_ = PadMode::kConstant;
  std::vector<int64_t> pads_;  // attributes, before these became inputs
  double value_;
};

constexpr DTypeSet kEarlyTypes{DType::kFloat32, DType::kFloat16, DType::kFloat64};

OpDef PadDef(int since, int until, std::vector<ArgDef> inputs) {
  const DTypeSet types = inputs[0].dtypes;
  return {
      .type = "Pad",
      .since = since,
      .until = until,
      .inputs = std::move(inputs),
      .outputs = {Output("output", types)},
      .attributes = {StringAttribute("mode", "constant")},
      .make = MakeKernel<PadKernel>,
      .unsupported = [](const NodeView& node) -> std::string {
        PadMode mode;
        const std::string name = node.attributes.String("mode");
        return ParsePadMode(name, &mode) ? "" : "Pad with mode \"" + name + "\" is not implemented";
      },
  };
}

OpDef EarlyPadDef() {
  OpDef def = PadDef(2, 2, {Input("data", kEarlyTypes)});
  def.attributes.push_back({.name = "pads", .kind = AttrDef::Kind::kInts, .required = true});
  def.attributes.push_back(FloatAttribute("value", 0.0));
  return def;
}

NPU_ONNX_KERNEL(EarlyPadDef());
NPU_ONNX_KERNEL(PadDef(11, 13,
                       {Input("data", kFixedWidth), HostInput("pads", {DType::kInt64}),
                        OptionalInput("constant_value", kFixedWidth)}));
NPU_ONNX_KERNEL(PadDef(18, 25,
                       {Input("data", kWholeBytes), HostInput("pads", {DType::kInt64}),
                        OptionalInput("constant_value", kWholeBytes), OptionalHostInput("axes", kIndices)}));

}  // namespace
}  // namespace npu
