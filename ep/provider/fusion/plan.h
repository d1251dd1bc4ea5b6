// Chooses the groups of nodes of a graph that fused operators compute.
#pragma once

#include <optional>
#include <vector>

#include "ep/provider/fusion/rule.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

struct Fusion {
  FusedNode fused;   // its group ascends
  const OpDef* def;  // of the registry

  size_t last() const { return fused.nodes.back(); }
  std::string TypeName() const { return fused.domain.empty() ? fused.type : fused.domain + ":" + fused.type; }
  // The group as one node, with the name of its last one.
  GraphNode AsNode(const std::vector<GraphNode>& nodes) const;
};

// A fused operator keeps its own copy of a constant: a larger one that other nodes read, too, would be stored twice.
bool IsTooLargeToCopy(const ValueView& constant);
// Whether the operator would do so.
bool StoresTwice(const FusionGraph& graph, const FusedNode& fused);

// The operator of the registry that computes the group; null if there is none, or not for these inputs.
const OpDef* FindDefinition(const FusedNode& fused, bool late_inputs);

// The node as a group of one. `index`: its own among those of its graph.
FusedNode GroupOfOne(const GraphNode& node, size_t index);

// Groups that share no node: larger ones first. `late_inputs`: see KernelInfo.
std::vector<Fusion> PlanFusions(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs);
// The group of all these nodes; none if no rule recognises it.
std::optional<Fusion> FindFusionOfAll(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs);

}  // namespace npu::provider
