// Gelu spelled out becomes the operator.
#include "ep/provider/fusion/gelu_match.h"

namespace npu::provider {
namespace {

std::optional<FusedNode> MatchGelu(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const auto gelu = MatchSpelledGelu(match, last);
  if (!gelu) return std::nullopt;
  FusedNode fused{.type = "Gelu", .version = 20, .inputs = {gelu->input}, .outputs = last.outputs};
  fused.attributes.Set("approximate", std::string(gelu->tanh ? "tanh" : "none"));
  fused.nodes = match.nodes();
  return fused;
}

NPU_FUSION_RULE(MatchGelu);

}  // namespace
}  // namespace npu::provider
