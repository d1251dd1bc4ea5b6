// Gelu spelled out: 0.5 x (1 + erf(x / sqrt(2))), and with 1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)).
#pragma once

#include <optional>

#include "ep/provider/fusion/rule.h"

namespace npu::provider {

struct GeluMatch {
  ValueView input;
  bool tanh;
};

// Takes the nodes of the Gelu that ends in `last`.
std::optional<GeluMatch> MatchSpelledGelu(FusionMatch& match, const GraphNode& last);

}  // namespace npu::provider
