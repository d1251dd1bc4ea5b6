// Finds values that a replay would miss: those that kernels read on the host only while a graph is captured.
#pragma once

#include <string>
#include <vector>

#include "ep/provider/node_view.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Per node, the input that it reads on the host although its value may differ between runs with the same shapes; empty
// if there is none. `defs[i]` is the kernel that will run `nodes[i]` on the NPU, or null for one on the CPU.
std::vector<std::string> FindFrozenInputs(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs);

}  // namespace npu::provider
