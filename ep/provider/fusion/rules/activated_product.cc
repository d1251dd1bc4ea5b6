// MatMul by a constant matrix, Add of a bias, an activation.
#include "ep/provider/fusion/activation_match.h"

namespace npu::provider {
namespace {

std::optional<FusedNode> MatchActivatedProduct(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const auto activation = MatchActivation(match, last);
  if (!activation || !activation->numbers.empty()) return std::nullopt;
  const GraphNode* sum = match.TakeProducer(activation->input, "Add");
  for (size_t i = 0; sum != nullptr && i < 2; ++i) {
    FusionMatch with = match;
    const GraphNode* matmul = with.TakeProducer(sum->inputs[i], "MatMul");
    const ValueView& bias = OtherOf(*sum, i);
    if (matmul == nullptr) continue;
    const ValueView& weight = matmul->inputs[1];
    if (!weight.constant || weight.shape.size() != 2 || weight.StaticElements() <= 0) continue;
    if (!bias.rank_known || bias.shape != std::vector<int64_t>{weight.shape[1]}) continue;
    FusedNode fused{.domain = "npu.fused", .type = "ActivatedMatMul", .outputs = {last.outputs[0]}};
    fused.inputs = {matmul->inputs[0], weight, bias};
    activation->Describe(fused.attributes);
    fused.nodes = with.nodes();
    return fused;
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchActivatedProduct);

}  // namespace
}  // namespace npu::provider
