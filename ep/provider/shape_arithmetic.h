// Finds the implemented nodes that stay on the CPU because they compute shapes, not data (docs/decisions/0002).
#pragma once

#include <vector>

#include "ep/provider/node_view.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Types in which the CPU provider implements all operators of shape arithmetic.
inline constexpr DTypeSet kHostTypes{DType::kInt32, DType::kInt64, DType::kBool, DType::kFloat32};

// `defs[i]` implements `nodes[i]`, or is null when the NPU does not. Nodes are in topological order.  `graphs`: the
// session captures graphs, so its inputs are in NPU memory.  `memory_plan`: see Options.  Returns, per node, whether it
// should be left to the CPU although it is implemented.
std::vector<bool> FindShapeArithmetic(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
                                      bool graphs, bool memory_plan);

}  // namespace npu::provider
