#include "ep/provider/fusion/weight_product.h"

namespace npu::provider {
namespace {

bool IsMatrix(const ValueView& weight) {
  return weight.constant && weight.shape.size() == 2 && weight.StaticElements() > 0;
}

bool IsGiven(const std::vector<ValueView>& inputs, size_t i) { return i < inputs.size() && inputs[i].info != nullptr; }

// npu_weight_quant_batchmatmul whose result has the type of its rows, without a bias.
std::optional<WeightProduct> QuantizedProduct(const GraphNode& node) {
  enum In { kX, kWeight, kScale, kOffset, kQuantScale, kQuantOffset, kBias };
  const std::vector<ValueView>& inputs = node.inputs;
  for (const size_t other : {kQuantScale, kQuantOffset, kBias})
    if (IsGiven(inputs, other)) return std::nullopt;
  const ValueView& scale = inputs[kScale];
  if (!IsMatrix(inputs[kWeight]) || !scale.constant || scale.dtype == DType::kInt64) return std::nullopt;
  // One scale for all columns is that of a tensor.
  const size_t axes = scale.shape.size();
  if ((axes != 1 && axes != 2) || scale.StaticElements() <= 0 || scale.shape.back() == 1) return std::nullopt;
  WeightProduct product{
      .prefix = "WeightQuant", .columns = scale.shape.back(), .inputs = {inputs[kX], inputs[kWeight], scale}};
  if (IsGiven(inputs, kOffset)) {
    if (!inputs[kOffset].constant) return std::nullopt;
    product.last.push_back(inputs[kOffset]);
  }
  for (const char* name : {"antiquant_group_size", "inner_precise"})
    product.attributes.Set(name, node.view.attributes.Int(name, 0));
  return product;
}

}  // namespace

std::optional<WeightProduct> TakeWeightProduct(FusionMatch& match, const ValueView& value) {
  if (const GraphNode* matmul = match.TakeProducer(value, "MatMul")) {
    const ValueView& weight = matmul->inputs[1];
    if (!IsMatrix(weight)) return std::nullopt;
    return WeightProduct{.prefix = "", .columns = weight.shape[1], .inputs = matmul->inputs};
  }
  const GraphNode* quantized = match.TakeProducer(value, "NPUWeightQuantBatchMatmulV2", "npu");
  return quantized == nullptr ? std::nullopt : QuantizedProduct(*quantized);
}

}  // namespace npu::provider
