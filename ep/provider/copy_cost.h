// Finds the implemented nodes that stay on the CPU because their values would be copied to the NPU and back
// (docs/decisions/0002).
#pragma once

#include <string_view>
#include <vector>

#include "ep/provider/node_view.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Where a node runs, before the costs of copies are considered.
enum class Side {
  kCpu,      // the NPU does not implement it
  kNpu,      // it is more than a pass over its elements, or the CPU may not implement it
  kEither,   // both implement it, at much the same speed
  kNeutral,  // on the CPU, with values that are too few to matter
};

// Whether the CPU provider implements the node, in one pass over its elements.
bool IsLight(const GraphNode& node, const OpDef& def);

// `sides` and `implicit_inputs`, the values that its subgraphs read, per node. Returns, per node, whether it is one of
// kEither that should be left to the CPU.
std::vector<bool> FindCheaperOnCpu(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
                                   const std::vector<Side>& sides,
                                   const std::vector<std::vector<const char*>>& implicit_inputs);

}  // namespace npu::provider
