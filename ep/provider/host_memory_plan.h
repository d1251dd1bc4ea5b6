// Finds the nodes of the CPU whose results onnxruntime's plan of memory would free too early (docs/decisions/0002).
#pragma once

#include <vector>

#include "ep/provider/node_view.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// `defs[i]` implements `nodes[i]`, or is null when the NPU does not; `on_cpu[i]`: the node is left to the CPU although
// it is implemented. Returns, per node, whether it is one of these and must not be.
std::vector<bool> FindUnsafeViews(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
                                  const std::vector<bool>& on_cpu);

}  // namespace npu::provider
