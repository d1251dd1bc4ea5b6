#include "ep/provider/partition.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ep/provider/context/context_node.h"
#include "ep/provider/control_flow.h"
#include "ep/provider/copy_cost.h"
#include "ep/provider/factory.h"
#include "ep/provider/fusion/plan.h"
#include "ep/provider/host_memory_plan.h"
#include "ep/provider/node_view.h"
#include "ep/provider/replayable.h"
#include "ep/provider/shape_arithmetic.h"
#include "ep/runtime/attribute_alias.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {
namespace {

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
  const std::string name = OperatorName(node.domain, node.view.op_type);
  if (options.cpu_operators.contains(name)) return Concat("the option cpu_operators leaves ", name, " to the CPU");
  if (const ControlFlow* flow = FindControlFlow(node)) {
    const std::string why = WhyControlFlowUnsupported(node, options);
    if (why.empty()) *def = &flow->def;
    return why;
  }
  const OpDef* found = OpRegistry::Instance().Find(node.domain, node.view.op_type, node.view.since_version);
  if (found == nullptr) {
    return Concat("no NPU kernel for ", name, " of operator set version ", node.view.since_version);
  }
  if (!node.unreadable.empty()) return node.unreadable;
  if (std::string why = WhyRankUnsupported(node.inputs); !why.empty()) return why;
  if (std::string why = WhyRankUnsupported(node.outputs); !why.empty()) return why;
  if (found->domain == "npu") node.view.attributes = AsDefined(found->type, node.view.attributes);
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

// What the provider decides about at once: a node, or a group of nodes that one fused operator computes.
struct Unit {
  std::vector<size_t> nodes;    // of the graph
  std::string fused_into = {};  // the type of the fused operator
  bool compiled = false;        // this session has fused it before
};

// The graph as units: a group stands where its last node was, when all it reads is computed.
struct Units {
  std::vector<GraphNode> graph;
  std::vector<Unit> units;
  // Per unit:
  std::vector<GraphNode> nodes;
  std::vector<const OpDef*> defs;
  std::vector<std::string> reasons;  // why there is no definition
};

// The provider that has the node already; "" if there is none.
std::string_view ProviderOf(const Api& api, const GraphNode& node) {
  const char* provider = nullptr;
  api.Check(api.ort.Node_GetEpName(node.node, &provider));
  return provider == nullptr ? "" : provider;
}

// Onnxruntime examines a graph again after it has inlined functions; fused nodes then have a type of onnxruntime's.
bool IsCompiled(const Api& api, const GraphNode& node) {
  return ProviderOf(api, node) == kEpName && FindControlFlow(node) == nullptr &&
         OpRegistry::Instance().FindNewest(node.domain, node.view.op_type) == nullptr;
}

bool IsSubgraph(const Api& api, const OrtGraph* graph) {
  const OrtNode* parent = nullptr;
  api.Check(api.ort.Graph_GetParentNode(graph, &parent));
  return parent != nullptr;
}

// The operator of an EPContext node; none if the session cannot run it. Then it fails when the node is compiled,
// because onnxruntime does not report an error from here.
std::optional<Fusion> ReadContext(const Api& api, const Options& options, const GraphNode& node, size_t index) {
  try {
    return ReadContextNode(api, node, index, options);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Onnxruntime copies all constants of single nodes to the device before it offers one to be packed, so that this one is
// there twice beside all others. What a fused node packs it reads from the model, before the others are copied.
bool HasLargeConstant(const GraphNode& node) {
  constexpr int64_t kLargeBytes = 16 << 20;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [](const ValueView& input) {
    const bool known = input.constant && input.dtype != DType::kUndefined && input.StaticElements() > 0;
    return known && static_cast<int64_t>(BytesFor(input.dtype, input.StaticElements())) >= kLargeBytes;
  });
}

Units ReadUnits(const Api& api, const OrtGraph* graph, OrtEpGraphSupportInfo* support, const Options& options,
                DeviceState& device, ChannelsLast& channels_last) {
  Units out;
  // Onnxruntime stores fused nodes of the model's own graph only.
  const bool own_graph = !IsSubgraph(api, graph), may_group = !options.compile || own_graph;
  const bool may_fuse = options.fusion && may_group;
  for (const OrtNode* node : NodesOf(api, graph)) out.graph.push_back(ReadNode(api, node));
  std::vector<Fusion> fusions;
  if (may_fuse) fusions = PlanFusions(api, out.graph, options.graphs);
  const auto left_out = [&](size_t n) {
    return options.cpu_operators.contains(OperatorName(out.graph[n].domain, out.graph[n].view.op_type));
  };
  const auto not_ours = [&](size_t n) { return left_out(n) || !ProviderOf(api, out.graph[n]).empty(); };
  if (may_fuse) channels_last.Plan(api, out.graph, options.graphs, not_ours, fusions);
  std::vector<const Fusion*> group(out.graph.size(), nullptr);
  for (const Fusion& fusion : fusions) {
    const std::vector<size_t>& members = fusion.fused.nodes;
    if (std::any_of(members.begin(), members.end(), left_out)) continue;
    for (const size_t n : members) group[n] = &fusion;
  }

  static const OpDef compiled{};
  for (size_t n = 0; n < out.graph.size(); ++n) {
    Unit unit{{n}};
    const OpDef* def = nullptr;
    std::string reason;
    GraphNode node = out.graph[n];
    if (const Fusion* fusion = group[n]) {
      if (n != fusion->last()) continue;
      unit = {fusion->fused.nodes, fusion->TypeName()};
      def = fusion->def;
      node = fusion->AsNode(out.graph);
    } else if (IsCompiled(api, node)) {
      unit.compiled = true;
      def = &compiled;
    } else if (IsContextNode(node)) {
      const std::optional<Fusion> context = ReadContext(api, options, node, n);
      unit.fused_into = context ? context->TypeName() : node.view.op_type;
      def = context ? context->def : &compiled;
      if (context) node = context->AsNode(out.graph);
    } else {
      reason = WhyNotImplemented(api, support, options, node, &def);
      const bool may_pack = options.compile || (may_fuse && reason.empty() && HasLargeConstant(node));
      if (own_graph && may_pack && def != nullptr)
        if (const auto packing = FindPackingNode(api, options, device, node, n, *def))
          unit.fused_into = packing->TypeName();
    }
    out.units.push_back(std::move(unit));
    out.nodes.push_back(std::move(node));
    out.defs.push_back(def);
    out.reasons.push_back(std::move(reason));
  }
  return out;
}

void Claim(const Api& api, OrtEpGraphSupportInfo* support, const Options& options, const Unit& unit,
           const std::vector<const OrtNode*>& nodes) {
  if (unit.fused_into.empty()) return api.Check(api.ep.EpGraphSupportInfo_AddSingleNode(support, nodes[0]));
  OrtNodeFusionOptions fusion{};
  fusion.ort_version_supported = ORT_API_VERSION;
  // The fused kernel keeps what it needs. A compiled model has the constants, too, in case they have to be packed
  // again.
  fusion.drop_constant_initializers = !options.compile;
  api.Check(api.ep.EpGraphSupportInfo_AddNodesToFuse(support, nodes.data(), nodes.size(), &fusion));
}

// Per unit, why it stays on the CPU although it is implemented, else empty.
std::vector<std::string> WhyOnCpu(const Api& api, const Units& units, const Options& options) {
  const std::vector<GraphNode>& nodes = units.nodes;
  std::vector<std::string> reasons(nodes.size());
  // Values in host memory need no copy to the CPU, and a run of the NPU alone needs no order between two providers.
  if (!options.shapes_on_cpu || options.host_memory) return reasons;
  std::vector<bool> on_cpu = FindShapeArithmetic(nodes, units.defs, options.graphs, options.memory_plan);
  std::vector<Side> sides(nodes.size(), Side::kNpu);
  std::vector<std::vector<const char*>> implicit_inputs(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (on_cpu[i]) reasons[i] = "shape arithmetic stays on the CPU";
    const Unit& unit = units.units[i];
    for (const size_t n : unit.nodes) {
      const auto names = ImplicitInputsOf(api, units.graph[n].node);
      implicit_inputs[i].insert(implicit_inputs[i].end(), names.begin(), names.end());
    }
    if (units.defs[i] == nullptr) sides[i] = Side::kCpu;
    if (on_cpu[i]) sides[i] = Side::kNeutral;
    const bool alone = unit.fused_into.empty() && !unit.compiled;
    if (sides[i] == Side::kNpu && alone && ProviderOf(api, nodes[i]).empty() && IsLight(nodes[i], *units.defs[i]))
      sides[i] = Side::kEither;
  }
  if (options.graphs) return reasons;  // which a node of the CPU prevents
  while (true) {
    const std::vector<bool> cheaper = FindCheaperOnCpu(nodes, units.defs, sides, implicit_inputs);
    std::vector<bool> all = on_cpu;
    for (size_t i = 0; i < nodes.size(); ++i) all[i] = all[i] || cheaper[i];
    std::vector<bool> unsafe(nodes.size(), false);
    if (options.memory_plan) unsafe = FindUnsafeViews(nodes, units.defs, all);
    bool changed = false;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!cheaper[i] || !unsafe[i]) continue;
      sides[i] = Side::kNpu;
      changed = true;
    }
    if (changed) continue;
    for (size_t i = 0; i < nodes.size(); ++i)
      if (cheaper[i]) reasons[i] = "on the CPU, it needs fewer copies between the CPU and the NPU";
    return reasons;
  }
}

}  // namespace

void ClaimNodes(const Api& api, const OrtGraph* graph, OrtEpGraphSupportInfo* support, const Options& options,
                DeviceState& device, AssignmentLog& log, SharedConstants& constants, ChannelsLast& channels_last) {
  const Units units = ReadUnits(api, graph, support, options, device, channels_last);
  const std::vector<GraphNode>& nodes = units.nodes;
  const std::vector<const OpDef*>& defs = units.defs;
  const std::vector<std::string> on_cpu = WhyOnCpu(api, units, options);
  std::vector<const OpDef*> claimed = defs;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!on_cpu[i].empty()) claimed[i] = nullptr;
  }
  const std::vector<std::string> frozen_inputs =
      options.graphs ? FindFrozenInputs(nodes, claimed) : std::vector<std::string>(nodes.size());

  const char* graph_name = nullptr;
  api.Check(api.ort.Graph_GetName(graph, &graph_name));
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Unit& unit = units.units[i];
    if (unit.compiled) continue;
    std::vector<const OrtNode*> group;
    for (const size_t n : unit.nodes) {
      const GraphNode& node = units.graph[n];
      group.push_back(node.node);
      Decision decision;
      decision.node = node.name;
      decision.op_type = node.view.op_type;
      decision.domain = node.domain;
      decision.fused_into = unit.fused_into;
      decision.implemented = defs[i] != nullptr;
      decision.claimed = claimed[i] != nullptr;
      decision.frozen_input = frozen_inputs[i];
      decision.reason = on_cpu[i].empty() ? units.reasons[i] : on_cpu[i];
      log.Record(IdentityOf(graph_name, node), std::move(decision));
    }
    if (claimed[i] == nullptr) continue;
    ExpectReaders(api, nodes[i], constants);
    Claim(api, support, options, unit, group);
  }
}

}  // namespace npu::provider
