#include "ep/provider/replayable.h"

#include <string_view>
#include <unordered_set>

namespace npu::provider {
namespace {

// True if the outputs depend only on shapes, not on the tensor's content.
bool ReadsShapesOnly(const GraphNode& node) {
  return node.domain.empty() && (node.view.op_type == "Shape" || node.view.op_type == "Size");
}

}  // namespace

std::vector<std::string> FindFrozenInputs(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs) {
  std::unordered_set<std::string_view> varying;  // values that depend on the content of a graph input
  std::vector<std::string> frozen(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    const GraphNode& node = nodes[n];
    bool varies = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueView& input = node.inputs[i];
      if (input.info == nullptr || input.constant) continue;
      if (!input.graph_input && varying.count(input.name) == 0) continue;
      varies = true;
      const ArgDef* arg = defs[n] == nullptr ? nullptr : ArgAt(defs[n]->inputs, i);
      if (arg != nullptr && ReadOnHost(*arg, true) && frozen[n].empty()) frozen[n] = input.name;
    }
    if (!varies || ReadsShapesOnly(node)) continue;
    for (const ValueView& output : node.outputs) {
      if (output.info != nullptr) varying.insert(output.name);
    }
  }
  return frozen;
}

}  // namespace npu::provider
