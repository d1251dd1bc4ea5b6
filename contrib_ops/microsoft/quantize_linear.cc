// QuantizeLinear and DequantizeLinear as onnxruntime's quantizer writes them for integers of 16 and 4 bits in operator
// sets before 21: ai.onnx's operators.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/quantization/linear.h"

namespace npu {
namespace {

constexpr DTypeSet kScales{DType::kFloat32, DType::kFloat16};
constexpr DTypeSet kQuantized{DType::kInt8, DType::kUInt8, DType::kInt16, DType::kUInt16, DType::kInt4, DType::kUInt4};
constexpr DTypeSet kDequantizable = kQuantized | DTypeSet{DType::kInt32};

NPU_ONNX_KERNEL(Microsoft({
    .type = "QuantizeLinear",
    .inputs = {Input("x", kScales), Input("y_scale", kScales), OptionalInput("y_zero_point", kQuantized)},
    .outputs = {Output("y", kQuantized)},
    .attributes = {IntAttribute("axis", 1)},
    .make = &MakeQuantizeLinear,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = "DequantizeLinear",
    .inputs = {Input("x", kDequantizable), Input("x_scale", kScales), OptionalInput("x_zero_point", kDequantizable)},
    .outputs = {Output("y", kScales)},
    .attributes = {IntAttribute("axis", 1)},
    .make = &MakeDequantizeLinear,
}));

}  // namespace
}  // namespace npu
