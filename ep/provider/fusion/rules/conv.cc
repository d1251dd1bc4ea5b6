// Conv, then Add of a residual of the same shape, then an activation; one of the two at least.
#include "ep/provider/fusion/activation_match.h"

namespace npu::provider {
namespace {

bool SameStaticShape(const ValueView& a, const ValueView& b) {
  return a.rank_known && b.rank_known && a.StaticElements() >= 0 && a.shape == b.shape;
}

FusedNode FusedConvOf(const FusionMatch& match, const GraphNode& conv, const ValueView* residual,
                      const std::optional<ActivationMatch>& activation, const GraphNode& last) {
  FusedNode fused{.domain = "npu.fused", .type = "FusedConv", .inputs = conv.inputs, .outputs = last.outputs};
  fused.attributes = conv.view.attributes;
  if (residual != nullptr) {
    fused.inputs.resize(3);  // without a bias
    fused.inputs.push_back(*residual);
  }
  if (activation) activation->Describe(fused.attributes);
  fused.nodes = match.nodes();
  return fused;
}

std::optional<FusedNode> MatchConv(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const auto activation = MatchActivation(match, last);
  const GraphNode* sum = activation ? graph.Producer(*activation->input) : &last;
  if (activation) {
    FusionMatch plain = match;
    if (const GraphNode* conv = plain.TakeProducer(*activation->input, "Conv"))
      return FusedConvOf(plain, *conv, nullptr, activation, last);
  }
  if (match.Take(sum, "Add") == nullptr) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch with = match;
    const ValueView& residual = OtherOf(*sum, i);
    const GraphNode* conv = with.TakeProducer(sum->inputs[i], "Conv");
    if (conv == nullptr || graph.Readers(conv->outputs[0]) != 1) continue;  // both may be convolutions
    // Broadcasting is left to Add.
    if (!SameStaticShape(conv->outputs[0], residual)) continue;
    return FusedConvOf(with, *conv, &residual, activation, last);
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchConv);

}  // namespace
}  // namespace npu::provider
