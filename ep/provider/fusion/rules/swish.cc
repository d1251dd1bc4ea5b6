// x * sigmoid(alpha * x), SiLU with alpha 1, is Swish; SiLU times a second value is SwiGlu.
#include "ep/provider/fusion/product.h"

namespace npu::provider {
namespace {

struct Swish {
  ValueView x;
  double alpha;
};

std::optional<Swish> TakeSwish(FusionMatch& match, const GraphNode* node) {
  if (match.Take(node, "Mul") == nullptr) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch with = match;
    const ValueView& x = OtherOf(*node, i);
    const GraphNode* gate = with.TakeProducer(node->inputs[i], "Sigmoid");
    if (gate == nullptr) continue;
    double alpha = 1;
    if (gate->inputs[0].name != x.name) {
      const Product product = FactorsOf(with, gate->inputs[0]);
      if (!product.IsPowerOf(x, 1)) continue;
      alpha = product.constant;
    }
    match = with;
    return Swish{x, alpha};
  }
  return std::nullopt;
}

std::optional<FusedNode> MatchSwish(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const auto swish = TakeSwish(match, &last);
  if (!swish) return std::nullopt;
  FusedNode fused{.type = "Swish", .version = 24, .inputs = {swish->x}, .outputs = last.outputs};
  fused.attributes.Set("alpha", swish->alpha);
  fused.nodes = match.nodes();
  return fused;
}

std::optional<FusedNode> MatchSwiGlu(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  if (match.Take(&last, "Mul") == nullptr) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch with = match;
    const auto swish = TakeSwish(with, graph.Producer(last.inputs[i]));
    if (!swish || swish->alpha != 1) continue;
    return FusedNode{.domain = "npu.fused",
                     .type = "SwiGlu",
                     .inputs = {swish->x, OtherOf(last, i)},
                     .outputs = last.outputs,
                     .nodes = with.nodes()};
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchSwish);
NPU_FUSION_RULE(MatchSwiGlu);

}  // namespace
}  // namespace npu::provider
