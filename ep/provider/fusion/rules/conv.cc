// Conv, BatchNormalization by constants, Add of a residual of the same shape, an activation: the first and one more at
// least.
#include "ep/provider/fusion/activation_match.h"

namespace npu::provider {
namespace {

bool SameStaticShape(const ValueView& a, const ValueView& b) {
  return a.rank_known && b.rank_known && a.StaticElements() >= 0 && a.shape == b.shape;
}

// A convolution and what normalises its result by constants, if anything does.
struct Convolution {
  const GraphNode *conv, *norm;
  const ValueView& result() const { return (norm != nullptr ? norm : conv)->outputs[0]; }
};

bool NormalizesByConstants(const GraphNode& norm) {
  const Attributes& attributes = norm.view.attributes;
  if (norm.inputs.size() != 5 || attributes.Int("training_mode", 0) != 0 || attributes.Int("spatial", 1) != 1)
    return false;
  for (size_t i = 1; i < norm.outputs.size(); ++i)
    if (norm.outputs[i].info != nullptr) return false;
  return true;
}

std::optional<Convolution> TakeConvolution(FusionMatch& match, const GraphNode* last) {
  if (const GraphNode* conv = match.Take(last, "Conv")) return Convolution{conv, nullptr};
  const GraphNode* norm = match.Take(last, "BatchNormalization");
  if (norm == nullptr || !NormalizesByConstants(*norm)) return std::nullopt;
  const GraphNode* conv = match.TakeProducer(norm->inputs[0], "Conv");
  return conv == nullptr ? std::nullopt : std::optional(Convolution{conv, norm});
}

FusedNode FusedConvOf(const FusionMatch& match, const Convolution& convolution, const ValueView* residual,
                      const std::optional<ActivationMatch>& activation, const GraphNode& last) {
  const GraphNode& conv = *convolution.conv;
  FusedNode fused{.domain = "npu.fused", .type = "FusedConv", .inputs = conv.inputs, .outputs = {last.outputs[0]}};
  fused.attributes = conv.view.attributes;
  if (residual != nullptr) {
    fused.inputs.resize(3);  // without a bias
    fused.inputs.push_back(*residual);
  }
  if (const GraphNode* norm = convolution.norm) {
    fused.type = "ConvBatchNormalization";
    fused.inputs.resize(4);
    fused.inputs.insert(fused.inputs.end(), norm->inputs.begin() + 1, norm->inputs.end());
    fused.attributes.Set("epsilon", norm->view.attributes.Float("epsilon", 1e-5));
  }
  if (activation) activation->Describe(fused.attributes);
  fused.nodes = match.nodes();
  return fused;
}

std::optional<FusedNode> MatchConv(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const auto activation = MatchActivation(match, last);
  const GraphNode* before = activation ? graph.Producer(activation->input) : &last;
  FusionMatch plain = match;
  if (const auto convolution = TakeConvolution(plain, before); convolution && (activation || convolution->norm))
    return FusedConvOf(plain, *convolution, nullptr, activation, last);
  if (match.Take(before, "Add") == nullptr) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch with = match;
    const ValueView& residual = OtherOf(*before, i);
    const auto convolution = TakeConvolution(with, graph.Producer(before->inputs[i]));
    if (!convolution || graph.Readers(convolution->result()) != 1) continue;  // both may be convolutions
    // Broadcasting is left to Add.
    if (!SameStaticShape(convolution->result(), residual)) continue;
    return FusedConvOf(with, *convolution, &residual, activation, last);
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchConv);

}  // namespace
}  // namespace npu::provider
