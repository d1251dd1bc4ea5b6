// QLinearConv: that of ONNX, with an attribute for images whose channels are last.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/quantization/bytes.h"

namespace npu {
namespace {

constexpr DTypeSet kScale{DType::kFloat32};

NPU_ONNX_KERNEL(Microsoft({
    .type = "QLinearConv",
    .inputs = {Input("x", kByteTypes), Input("x_scale", kScale), Input("x_zero_point", kByteTypes),
               Input("w", kByteTypes), Input("w_scale", kScale), Input("w_zero_point", kByteTypes),
               Input("y_scale", kScale), Input("y_zero_point", kByteTypes), OptionalInput("B", {DType::kInt32})},
    .outputs = {Output("y", kByteTypes)},
    .attributes = convolution::ConvolutionAttributes({IntAttribute("channels_last", 0)}),
    .make = [](const KernelInfo& info) { return OpRegistry::Instance().Find("", "QLinearConv", 10)->make(info); },
    .unsupported = [](const NodeView& node) -> std::string {
      return node.attributes.Int("channels_last", 0) != 0 ? "channels_last is not implemented" : "";
    },
}));

}  // namespace
}  // namespace npu
