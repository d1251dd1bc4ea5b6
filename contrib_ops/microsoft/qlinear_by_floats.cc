// QLinearAveragePool, QLinearGlobalAveragePool, QLinearReduceMean and QLinearSoftmax: ONNX's kernel for floats between
// a tensor of 8-bit integers that is dequantised and a result that is quantised, both in scratch memory.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/quantized_tensor.h"
#include "ep/kernels/onnx_step.h"
#include "ep/kernels/pooling/definition.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr DTypeSet kFloat32{DType::kFloat32};

class QLinearByFloatsKernel final : public Kernel {
 public:
  QLinearByFloatsKernel(std::string type, std::unique_ptr<Kernel> floats)
      : type_(std::move(type)), floats_(std::move(floats)) {}

  void Compute(OpContext& ctx) const override {
    const char* op = type_.c_str();
    const TensorView x = ctx.Input(0);
    const QuantizationScale x_scale(op, "X", x.dtype, ctx.Input(1), ctx.Input(2));
    const QuantizationScale y_scale(op, "Y", x.dtype, ctx.Input(3), ctx.Input(4));
    const TensorView values{ctx.Workspace(BytesFor(DType::kFloat32, x.elements())), DType::kFloat32, true, x.shape};
    ctx.Launch(op, [=] {
      ParallelFor(x.elements(), kSerialElements, [&](int64_t begin, int64_t end) {
        x_scale.Dequantize(x.as<const char>() + begin, end - begin, values.as<float>() + begin);
      });
    });
    StepContext step(ctx, {values}, StepContext::Scratch(ctx));
    floats_->Compute(step);
    const TensorView result = step.result(), y = ctx.Output(0, x.dtype, result.shape);
    ctx.Launch(op, [=] {
      ParallelFor(y.elements(), kSerialElements, [&](int64_t begin, int64_t end) {
        y_scale.Quantize(result.as<const float>() + begin, end - begin, y.as<char>() + begin);
      });
    });
  }

 private:
  std::string type_;
  std::unique_ptr<Kernel> floats_;  // of ONNX's operator
};

// A factory of QLinear`type`, by the version of ONNX's `type` that `version` gives.
KernelFactory ByFloats(const char* type, int (*version)(const Attributes&)) {
  return [type, version](const KernelInfo& info) -> std::unique_ptr<Kernel> {
    KernelInfo floats = info;
    floats.input_dtypes = {};
    floats.input_shapes = {};
    return std::make_unique<QLinearByFloatsKernel>(std::string("QLinear") + type,
                                                   MakeStep(type, version(info.attributes), floats, info.attributes));
  };
}

std::string ChannelsLast(const NodeView& node) {
  if (node.attributes.Int("channels_last") == 0) return "";
  return node.op_type + " with channels last is not implemented";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = "QLinearAveragePool",
    .inputs = {Input("X", kByteTypes), Input("x_scale", kFloat32), OptionalInput("x_zero_point", kByteTypes),
               Input("y_scale", kFloat32), OptionalInput("y_zero_point", kByteTypes)},
    .outputs = {Output("Y", kByteTypes)},
    .attributes = pooling::SlidingAttributes({IntAttribute("count_include_pad", 0), IntAttribute("channels_last", 0)}),
    .make = ByFloats("AveragePool", [](const Attributes&) { return 11; }),
    .unsupported = ChannelsLast,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = "QLinearGlobalAveragePool",
    .inputs = {Input("X", kByteTypes), Input("x_scale", kFloat32), Input("x_zero_point", kByteTypes),
               Input("y_scale", kFloat32), Input("y_zero_point", kByteTypes)},
    .outputs = {Output("Y", kByteTypes)},
    .attributes = {IntAttribute("channels_last", 0)},
    .make = ByFloats("GlobalAveragePool", [](const Attributes&) { return 1; }),
    .unsupported = ChannelsLast,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = "QLinearReduceMean",
    .inputs = {Input("data", kByteTypes), Input("data_scale", kFloat32), OptionalInput("data_zero_point", kByteTypes),
               Input("reduced_scale", kFloat32), OptionalInput("reduced_zero_point", kByteTypes)},
    .outputs = {Output("reduced", kByteTypes)},
    .attributes = {IntsAttribute("axes"), IntAttribute("keepdims", 1)},
    .make = ByFloats("ReduceMean", [](const Attributes&) { return 13; }),
}));
// `opset` is that of ONNX's Softmax: before 13 it takes all dimensions from `axis` on for one.
NPU_ONNX_KERNEL(Microsoft({
    .type = "QLinearSoftmax",
    .inputs = {Input("X", kByteTypes), Input("X_scale", kFloat32), OptionalInput("x_zero_point", kByteTypes),
               Input("y_scale", kFloat32), Input("y_zero_point", kByteTypes)},
    .outputs = {Output("Y", kByteTypes)},
    .attributes = {IntAttribute("axis", -1), RequiredInt("opset")},
    .make = ByFloats("Softmax", [](const Attributes& given) { return given.Int("opset") < 13 ? 11 : 13; }),
}));

}  // namespace
}  // namespace npu
