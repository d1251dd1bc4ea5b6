// FusedConv: the kernel of the convolutions that the provider fuses itself, for files that onnxruntime fused.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/activation/output_activation.h"
#include "ep/kernels/convolution/arguments.h"

namespace npu {
namespace {

constexpr DTypeSet kTypes{DType::kFloat32, DType::kFloat16, DType::kFloat64};

NPU_ONNX_KERNEL(Microsoft({
    .type = "FusedConv",
    .inputs = {Input("X", kTypes), Input("W", kTypes), OptionalInput("B", kTypes), OptionalInput("Z", kTypes)},
    .outputs = {Output("Y", kTypes)},
    .attributes = convolution::ConvolutionAttributes(OutputActivation::Definitions()),
    .make = [](const KernelInfo& info) { return OpRegistry::Instance().Find("npu.fused", "FusedConv", 1)->make(info); },
    .unsupported = [](const NodeView& node) { return OutputActivation::WhyUnsupported(node.attributes); },
}));

}  // namespace
}  // namespace npu
