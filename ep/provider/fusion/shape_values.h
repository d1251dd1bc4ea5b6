// The values of shapes that a model computes from the shapes of other values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ep/provider/fusion/rule.h"

namespace npu::provider {

// The elements of a list of integers as FusionGraph::Dims names them, each known, if it is a constant or computed by
// Shape, Gather, Slice and Concat; takes those nodes.
std::optional<std::vector<std::string>> TakeShape(FusionMatch& match, const ValueView& value);

}  // namespace npu::provider
