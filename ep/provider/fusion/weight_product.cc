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

// Whether npu_dynamic_quant has made these rows and their scales, one for each of them, whatever their axes.
bool AreRoundedRows(const FusionGraph& graph, const ValueView& rows, const ValueView& scale) {
  if (graph.of_group()) return true;
  const GraphNode* node = graph.Producer(rows);
  return node != nullptr && node == graph.Producer(scale) && node->domain == "npu" &&
         node->view.op_type == "NPUDynamicQuant" && node->outputs[0].name == rows.name &&
         node->view.attributes.String("quant_mode", "pertoken") == "pertoken";
}

// npu_quant_matmul of int8 with a result of 16-bit floats, without offset, bias and groups.
std::optional<WeightProduct> IntegerProduct(const FusionGraph& graph, const GraphNode& node) {
  enum In { kX1, kX2, kScale, kOffset, kRowScale, kBias, kYScale };
  constexpr int64_t kFloat16 = 1, kBFloat16 = 27;  // as output_dtype names them
  const std::vector<ValueView>& inputs = node.inputs;
  for (const size_t other : {kOffset, kBias, kYScale})
    if (IsGiven(inputs, other)) return std::nullopt;
  const ValueView &weight = inputs[kX2], &scale = inputs[kScale];
  const int64_t result = node.view.attributes.Int("output_dtype", 0);
  if ((result != kFloat16 && result != kBFloat16) || !node.view.attributes.Ints("group_sizes", {}).empty())
    return std::nullopt;
  if (!IsMatrix(weight) || weight.dtype != DType::kInt8 || inputs[kX1].dtype != DType::kInt8) return std::nullopt;
  if (!scale.constant || scale.dtype != DType::kFloat32 || scale.StaticElements() != weight.shape[1] ||
      scale.shape.back() != weight.shape[1])
    return std::nullopt;
  WeightProduct product{
      .prefix = "Quant", .columns = weight.shape[1], .inputs = {inputs[kX1], weight, scale}, .result = result};
  if (IsGiven(inputs, kRowScale)) {
    if (!AreRoundedRows(graph, inputs[kX1], inputs[kRowScale])) return std::nullopt;
    product.last.push_back(inputs[kRowScale]);
  }
  return product;
}

}  // namespace

std::optional<WeightProduct> TakeWeightProduct(FusionMatch& match, const ValueView& value) {
  if (const GraphNode* matmul = match.TakeProducer(value, "MatMul")) {
    const ValueView& weight = matmul->inputs[1];
    if (!IsMatrix(weight)) return std::nullopt;
    return WeightProduct{.prefix = "", .columns = weight.shape[1], .inputs = matmul->inputs};
  }
  if (const GraphNode* quantized = match.TakeProducer(value, "NPUWeightQuantBatchMatmulV2", "npu"))
    return QuantizedProduct(*quantized);
  const GraphNode* integers = match.TakeProducer(value, "NPUQuantMatmul", "npu");
  return integers == nullptr ? std::nullopt : IntegerProduct(match.graph(), *integers);
}

}  // namespace npu::provider
