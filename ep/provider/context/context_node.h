// The EPContext nodes of a compiled model: each stands for one operator of the registry with its packed constants
// (docs/decisions/0035).
#pragma once

#include <string>
#include <vector>

#include "ep/provider/context/description.h"
#include "ep/provider/context/stamp.h"
#include "ep/provider/fusion/plan.h"
#include "ep/provider/options.h"

namespace npu::provider {

// Whether the node is an EPContext of this provider.
bool IsContextNode(const GraphNode& node);
// Such a node as the group of one that it is. Throws if the session cannot run it: the registry has no such operator,
// or not for these inputs.
Fusion ReadContextNode(const Api& api, const GraphNode& node, size_t index, const Options& options);

// Where the node's blocks are and what they were made for.
struct ContextData {
  std::vector<PackedBlock> blocks;
  ContextStamp stamp;
  bool embedded = false;
  std::string content;  // the blocks if embedded, else the name of their file
};
ContextData ReadContextData(const GraphNode& node);

// The EPContext node of a group that has become `fused_node`; onnxruntime takes it.
OrtNode* NewContextNode(const Api& api, const Fusion& fusion, const OrtNode* fused_node, const ContextData& data);

// A node that becomes an EPContext by itself, because its kernel packs constants; none for others. `def`: its operator.
std::optional<Fusion> FindPackingNode(const Api& api, const Options& options, DeviceState& device,
                                      const GraphNode& node, size_t index, const OpDef& def);
// What a group stands for that onnxruntime hands over to be compiled: an EPContext, what a rule recognises, or, while
// a compiled model is stored, a node that packs. Throws for others.
Fusion FindFusion(const Api& api, const std::vector<GraphNode>& nodes, const Options& options);

}  // namespace npu::provider
