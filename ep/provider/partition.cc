#include "ep/provider/partition.h"

#include <string>
#include <utility>
#include <vector>

#include "ep/provider/control_flow.h"
#include "ep/provider/node_view.h"
#include "ep/provider/replayable.h"
#include "ep/provider/shape_arithmetic.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {
namespace {

// An empty constant for an optional input of an npu:: operator counts as absent, because exporters write it that way.
void DropEmptyOptionals(const OpDef& def, GraphNode& node) {
  if (def.domain != "npu") return;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ArgDef* arg = ArgAt(def.inputs, i);
    if (arg != nullptr && arg->optional && node.inputs[i].constant && node.inputs[i].StaticElements() == 0) {
      node.view.inputs[i] = DType::kUndefined;
    }
  }
}

// A rank that is only known when the model runs may still be too large; the kernel reports it then.
std::string WhyRankUnsupported(const std::vector<ValueView>& values) {
  for (const ValueView& value : values)
    if (value.rank_known && value.shape.size() > static_cast<size_t>(Shape::kMaxRank))
      return Concat("expected tensors of rank <= ", Shape::kMaxRank, ", got '", value.name, "' of rank ",
                    value.shape.size());
  return "";
}

// Why the NPU does not implement the node; empty and `*def` set when it does.
std::string WhyNotImplemented(const Api& api, OrtEpGraphSupportInfo* support, const Options& options, GraphNode& node,
                              const OpDef** def) {
  if (const ControlFlow* flow = FindControlFlow(node)) {
    const std::string why = WhyControlFlowUnsupported(node, options.graphs);
    if (why.empty()) *def = &flow->def;
    return why;
  }
  const std::string name = (node.domain.empty() ? "" : node.domain + ":") + node.view.op_type;
  const OpDef* found = OpRegistry::Instance().Find(node.domain, node.view.op_type, node.view.since_version);
  if (found == nullptr) {
    return Concat("no NPU kernel for ", name, " of operator set version ", node.view.since_version);
  }
  if (!node.unreadable.empty()) return node.unreadable;
  if (std::string why = WhyRankUnsupported(node.inputs); !why.empty()) return why;
  if (std::string why = WhyRankUnsupported(node.outputs); !why.empty()) return why;
  if (std::string why = WhyAttributesUnsupported(*found, node.view.attributes); !why.empty()) return why;
  DropEmptyOptionals(*found, node);
  if (std::string why = WhyUnsupported(*found, node.view); !why.empty()) return why;
  const OrtKernelDef* kernel = nullptr;
  api.Check(api.ep.EpGraphSupportInfo_LookUpKernel(support, node.node, &kernel));
  if (kernel == nullptr) return Concat("onnxruntime finds no NPU kernel for this use of ", name);
  *def = found;
  return "";
}

void ExpectReaders(const Api& api, const GraphNode& node, SharedConstants& constants) {
  for (const ValueView& input : node.inputs) {
    if (!input.constant || input.graph_output) continue;
    size_t readers = 0;
    api.Check(api.ort.ValueInfo_GetValueNumConsumers(input.info, &readers));
    if (readers > 1) constants.Expect(input.name, readers);
  }
}

// Node names may be empty or repeat; the first output's name is unique in its graph.
std::string IdentityOf(const std::string& graph_name, const GraphNode& node) {
  std::string identity = graph_name + '\n' + node.domain + '\n' + node.view.op_type + '\n' + node.name;
  for (const ValueView& output : node.outputs) identity += '\n' + output.name;
  return identity;
}

}  // namespace

void ClaimNodes(const Api& api, const OrtGraph* graph, OrtEpGraphSupportInfo* support, const Options& options,
                AssignmentLog& log, SharedConstants& constants) {
  std::vector<GraphNode> nodes;
  std::vector<const OpDef*> defs;
  std::vector<std::string> reasons;
  for (const OrtNode* node : NodesOf(api, graph)) {
    nodes.push_back(ReadNode(api, node));
    const OpDef* def = nullptr;
    reasons.push_back(WhyNotImplemented(api, support, options, nodes.back(), &def));
    defs.push_back(def);
  }
  std::vector<bool> shape_arithmetic(nodes.size(), false);
  // Values in host memory need no copy to the CPU, and a run of the NPU alone needs no order between two providers.
  if (options.shapes_on_cpu && !options.host_memory)
    shape_arithmetic = FindShapeArithmetic(nodes, defs, options.graphs, options.memory_plan);
  std::vector<const OpDef*> claimed = defs;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (shape_arithmetic[i]) claimed[i] = nullptr;
  }
  const std::vector<std::string> frozen_inputs =
      options.graphs ? FindFrozenInputs(nodes, claimed) : std::vector<std::string>(nodes.size());

  const char* graph_name = nullptr;
  api.Check(api.ort.Graph_GetName(graph, &graph_name));
  for (size_t i = 0; i < nodes.size(); ++i) {
    Decision decision;
    decision.node = nodes[i].name;
    decision.op_type = nodes[i].view.op_type;
    decision.domain = nodes[i].domain;
    decision.shape_arithmetic = shape_arithmetic[i];
    decision.claimed = claimed[i] != nullptr;
    decision.frozen_input = frozen_inputs[i];
    decision.reason = shape_arithmetic[i] ? "shape arithmetic stays on the CPU" : reasons[i];
    if (decision.claimed) ExpectReaders(api, nodes[i], constants);
    if (decision.claimed) api.Check(api.ep.EpGraphSupportInfo_AddSingleNode(support, nodes[i].node));
    log.Record(IdentityOf(graph_name, nodes[i]), std::move(decision));
  }
}

}  // namespace npu::provider
