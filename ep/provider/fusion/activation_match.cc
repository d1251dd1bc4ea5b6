#include "ep/provider/fusion/activation_match.h"

#include <cmath>
#include <limits>

#include "ep/provider/fusion/gelu_match.h"

namespace npu::provider {
namespace {

// Activations of one node whose attributes say all.
std::optional<ActivationMatch> MatchOneNode(FusionMatch& match, const GraphNode& last) {
  const Attributes& attributes = last.view.attributes;
  for (const char* name : {"Relu", "Sigmoid", "Tanh", "HardSwish"})
    if (match.Take(&last, name)) return ActivationMatch{last.inputs[0], name};
  if (match.Take(&last, "LeakyRelu"))
    return ActivationMatch{last.inputs[0], "LeakyRelu", {attributes.Float("alpha", 0.01)}};
  if (match.Take(&last, "HardSigmoid"))
    return ActivationMatch{
        last.inputs[0], "HardSigmoid", {attributes.Float("alpha", 0.2), attributes.Float("beta", 0.5)}};
  if (match.Take(&last, "Gelu"))
    return ActivationMatch{last.inputs[0], attributes.String("approximate", "none") == "tanh" ? "GeluTanh" : "Gelu"};
  return std::nullopt;
}

// The bound `i` of a Clip, or `fallback` without it; none if it is not constant.
std::optional<double> BoundOf(const FusionGraph& graph, const GraphNode& clip, size_t i, double fallback) {
  if (i >= clip.inputs.size() || clip.inputs[i].info == nullptr) return fallback;
  return graph.Scalar(clip.inputs[i]);
}

std::optional<ActivationMatch> MatchClip(FusionMatch& match, const GraphNode& last) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  if (!match.Take(&last, "Clip")) return std::nullopt;
  const Attributes& attributes = last.view.attributes;  // before operator set 11
  const auto low = BoundOf(match.graph(), last, 1, attributes.Float("min", -kFar));
  const auto high = BoundOf(match.graph(), last, 2, attributes.Float("max", kFar));
  if (!low || !high) return std::nullopt;
  return ActivationMatch{last.inputs[0], "Clip", {*low, *high}};
}

// x * Sigmoid(x) is Silu; x * HardSigmoid(x) with alpha 1/6 and beta 1/2 is HardSwish.
std::optional<ActivationMatch> MatchGated(FusionMatch& match, const GraphNode& last) {
  if (!match.Take(&last, "Mul")) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const ValueView& x = OtherOf(last, i);
    FusionMatch with = match;
    const GraphNode* gate = with.TakeProducer(last.inputs[i], "Sigmoid");
    const char* name = "Silu";
    if (gate == nullptr) {
      gate = with.TakeProducer(last.inputs[i], "HardSigmoid");
      name = "HardSwish";
      if (gate == nullptr) continue;
      const Attributes& attributes = gate->view.attributes;
      // Attributes are float32.
      if (std::fabs(attributes.Float("alpha", 0.2) - 1.0 / 6) > 1e-7 || attributes.Float("beta", 0.5) != 0.5) continue;
    }
    if (gate->inputs[0].name != x.name) continue;
    match = with;
    return ActivationMatch{gate->inputs[0], name};
  }
  return std::nullopt;
}

std::optional<ActivationMatch> MatchGelu(FusionMatch& match, const GraphNode& last) {
  const auto gelu = MatchSpelledGelu(match, last);
  return gelu ? std::optional(ActivationMatch{gelu->input, gelu->tanh ? "GeluTanh" : "Gelu"}) : std::nullopt;
}

}  // namespace

std::optional<ActivationMatch> MatchActivation(FusionMatch& match, const GraphNode& last) {
  for (const auto form : {&MatchOneNode, &MatchClip, &MatchGated, &MatchGelu}) {
    FusionMatch with = match;
    if (auto found = form(with, last)) {
      match = with;
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace npu::provider
