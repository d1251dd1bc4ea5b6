// Activations as models spell them.
#pragma once

#include <optional>

#include "ep/provider/fusion/rule.h"

namespace npu::provider {

// An activation of `input` that ends in a node, as the attributes of fused operators name it (OutputActivation).
struct ActivationMatch {
  ValueView input = {};
  std::string name;
  std::vector<double> numbers = {};

  void Describe(Attributes& attributes) const {
    attributes.Set("activation", name);
    if (!numbers.empty()) attributes.Set("activation_params", numbers);
  }
};

// Takes the nodes of the activation that ends in `last`.
std::optional<ActivationMatch> MatchActivation(FusionMatch& match, const GraphNode& last);

}  // namespace npu::provider
