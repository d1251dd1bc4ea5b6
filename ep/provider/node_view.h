// Reads a node of ORT's graph into the runtime's types.
#pragma once

#include <string>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// What the partitioner needs to know about one value of the graph.
struct ValueView {
  const OrtValueInfo* info = nullptr;  // null: an omitted input or output
  std::string name;
  bool is_tensor = false;
  DType dtype = DType::kUndefined;
  bool rank_known = false;
  std::vector<int64_t> shape;  // -1: unknown
  bool constant = false;
  bool out_of_reach = false;  // a constant, but neither its value nor the value as an input can be had by a fused node
  bool graph_input = false;
  bool graph_output = false;

  // Elements when every dimension is known, else -1; saturates.
  int64_t StaticElements() const;
};

struct GraphNode {
  const OrtNode* node = nullptr;
  std::string name, domain;
  std::vector<ValueView> inputs, outputs;
  NodeView view;
  std::string unreadable;  // why the runtime cannot express the node (an attribute of an unsupported kind), else empty
};

GraphNode ReadNode(const Api& api, const OrtNode* node);
// Names of values that subgraphs of the node read.
std::vector<const char*> ImplicitInputsOf(const Api& api, const OrtNode* node);
std::vector<const OrtNode*> NodesOf(const Api& api, const OrtGraph* graph);

// Why the node's attributes do not match the definition, else empty.
std::string WhyAttributesUnsupported(const OpDef& def, const Attributes& attributes);

// An empty constant for an optional input of an npu:: operator counts as absent, because exporters write it that way.
void DropEmptyOptionals(const OpDef& def, GraphNode& node);

// The attributes that `def` lists, as passed to the kernel.
Attributes ReadAttributes(const Api& api, const OrtKernelInfo* info, const OpDef& def);

// The definition of argument i: the last one repeats when it is variadic; null beyond the end.
const ArgDef* ArgAt(const std::vector<ArgDef>& args, size_t i);

// Whether the kernel reads the argument on the host; `late_inputs`: see KernelInfo.
inline bool ReadOnHost(const ArgDef& arg, bool late_inputs) { return arg.cpu && !(arg.late && late_inputs); }

}  // namespace npu::provider
