// A product with a constant matrix, whose result npu_add_rms_norm adds to a residual: the sum is then computed beside
// the multiplications, and the product is never stored.
#include <utility>

#include "ep/provider/fusion/weight_product.h"

namespace npu::provider {
namespace {

std::optional<FusedNode> MatchNormedProduct(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch norm(graph);
  if (norm.Take(&last, "NPUAddRmsNorm", "npu") == nullptr || last.inputs.size() != 3) return std::nullopt;
  const auto is_read = [&](size_t i) { return i < last.outputs.size() && graph.Readers(last.outputs[i]) > 0; };
  if (!is_read(0) || is_read(1)) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch match = norm;
    std::optional<WeightProduct> product = TakeWeightProduct(match, last.inputs[i]);
    if (!product) continue;
    const ValueView& gamma = last.inputs[2];
    if (!gamma.rank_known || gamma.shape != std::vector<int64_t>{product->columns}) continue;
    FusedNode fused{.domain = "npu.fused", .type = product->prefix + "MatMulAddRmsNorm", .outputs = {last.outputs[0]}};
    if (is_read(2)) fused.outputs.push_back(last.outputs[2]);
    fused.inputs = std::move(product->inputs);
    fused.inputs.insert(fused.inputs.end(), {OtherOf(last, i), gamma});
    fused.inputs.insert(fused.inputs.end(), product->last.begin(), product->last.end());
    fused.attributes = std::move(product->attributes);
    fused.attributes.Set("epsilon", last.view.attributes.Float("epsilon", 1e-6));
    fused.nodes = match.nodes();
    return fused;
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchNormedProduct);

}  // namespace
}  // namespace npu::provider
