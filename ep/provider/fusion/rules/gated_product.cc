// A product with a constant matrix, whose result npu_swiglu halves along the last axis: silu and product are then
// computed beside the multiplications, and the halves are never stored.
#include <utility>

#include "ep/provider/fusion/weight_product.h"

namespace npu::provider {
namespace {

std::optional<FusedNode> MatchGatedProduct(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  if (match.Take(&last, "NPUSwiGlu", "npu") == nullptr) return std::nullopt;
  const ValueView& halves = last.inputs[0];
  const int64_t axis = last.view.attributes.Int("dim", -1);
  if (axis != -1 && (!halves.rank_known || axis != static_cast<int64_t>(halves.shape.size()) - 1)) return std::nullopt;
  std::optional<WeightProduct> product = TakeWeightProduct(match, halves);
  if (!product || product->columns % 2 != 0) return std::nullopt;
  FusedNode fused{.domain = "npu.fused",
                  .type = product->prefix + "GatedMatMul",
                  .inputs = std::move(product->inputs),
                  .outputs = last.outputs,
                  .attributes = std::move(product->attributes),
                  .nodes = match.nodes()};
  if (product->result) fused.attributes.Set("output_dtype", *product->result);
  fused.inputs.insert(fused.inputs.end(), product->last.begin(), product->last.end());
  return fused;
}

NPU_FUSION_RULE(MatchGatedProduct);

}  // namespace
}  // namespace npu::provider
