// MatMul by a constant matrix, whose result npu_swiglu halves along the last axis: silu and product are then computed
// beside the multiplications, and the halves are never stored.
#include "ep/provider/fusion/rule.h"

namespace npu::provider {
namespace {

std::optional<FusedNode> MatchGatedProduct(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  if (match.Take(&last, "NPUSwiGlu", "npu") == nullptr) return std::nullopt;
  const ValueView& product = last.inputs[0];
  const int64_t axis = last.view.attributes.Int("dim", -1);
  if (axis != -1 && (!product.rank_known || axis != static_cast<int64_t>(product.shape.size()) - 1))
    return std::nullopt;
  const GraphNode* matmul = match.TakeProducer(product, "MatMul");
  if (matmul == nullptr) return std::nullopt;
  const ValueView& weight = matmul->inputs[1];
  if (!weight.constant || weight.shape.size() != 2 || weight.shape[1] % 2 != 0 || weight.StaticElements() <= 0)
    return std::nullopt;
  return FusedNode{.domain = "npu.fused",
                   .type = "GatedMatMul",
                   .inputs = matmul->inputs,
                   .outputs = last.outputs,
                   .nodes = match.nodes()};
}

NPU_FUSION_RULE(MatchGatedProduct);

}  // namespace
}  // namespace npu::provider
