#include "ep/provider/fusion/plan.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace npu::provider {
namespace {

constexpr int64_t kMostCopiedBytes = 1 << 20;

// How often the group reads each value.
std::unordered_map<std::string_view, size_t> ReadersWithin(const FusionGraph& graph, const FusedNode& fused) {
  std::unordered_map<std::string_view, size_t> readers;
  for (const size_t n : fused.nodes)
    for (const ValueView& input : graph.nodes()[n].inputs)
      if (input.info != nullptr) ++readers[input.name];
  return readers;
}

bool IsOutputOf(const FusedNode& fused, const ValueView& value) {
  return std::any_of(fused.outputs.begin(), fused.outputs.end(),
                     [&](const ValueView& output) { return output.name == value.name; });
}

// Whether nothing but the group reads what the fused operator does not return, and the operator reads
// nothing of the group.
bool IsClosed(const FusionGraph& graph, const FusedNode& fused) {
  auto within = ReadersWithin(graph, fused);
  for (const size_t n : fused.nodes) {
    for (const ValueView& output : graph.nodes()[n].outputs) {
      if (output.info == nullptr) continue;
      if (!IsOutputOf(fused, output) && graph.Readers(output) != within[output.name]) return false;
      if (std::any_of(fused.inputs.begin(), fused.inputs.end(),
                      [&](const ValueView& input) { return input.info != nullptr && input.name == output.name; }))
        return false;
    }
  }
  return !StoresTwice(graph, fused);
}

// Whether the nodes can still be ordered if each group is one node.
bool AreOrdered(const FusionGraph& graph, const std::vector<Fusion>& groups) {
  std::vector<size_t> group_of(graph.nodes().size());  // named by its last node
  std::iota(group_of.begin(), group_of.end(), size_t{0});
  for (const Fusion& group : groups)
    for (const size_t n : group.fused.nodes) group_of[n] = group.last();
  std::vector<std::vector<size_t>> readers(group_of.size());
  std::vector<size_t> waits_for(group_of.size(), 0);
  for (size_t n = 0; n < group_of.size(); ++n) {
    for (const size_t source : graph.Sources(n)) {
      if (group_of[source] == group_of[n]) continue;
      readers[group_of[source]].push_back(group_of[n]);
      ++waits_for[group_of[n]];
    }
  }
  std::vector<size_t> ready;
  size_t left = 0;
  for (size_t n = 0; n < group_of.size(); ++n) {
    if (group_of[n] != n) continue;
    ++left;
    if (waits_for[n] == 0) ready.push_back(n);
  }
  for (; !ready.empty(); --left) {
    const size_t next = ready.back();
    ready.pop_back();
    for (const size_t reader : readers[next])
      if (--waits_for[reader] == 0) ready.push_back(reader);
  }
  return left == 0;
}

// Onnxruntime passes all values of a fused node in device memory.
bool ReadsValueOnHost(const OpDef& def, const FusedNode& fused, bool late_inputs) {
  for (size_t i = 0; i < fused.inputs.size(); ++i) {
    const ArgDef* arg = ArgAt(def.inputs, i);
    if (arg != nullptr && ReadOnHost(*arg, late_inputs) && fused.inputs[i].info != nullptr && !fused.inputs[i].constant)
      return true;
  }
  return std::any_of(def.outputs.begin(), def.outputs.end(), [](const ArgDef& output) { return output.cpu; });
}

NodeView ViewOf(const FusedNode& fused) {
  NodeView view;
  view.op_type = fused.type;
  view.since_version = fused.version;
  view.attributes = fused.attributes;
  for (const ValueView& input : fused.inputs) {
    view.inputs.push_back(input.info == nullptr ? DType::kUndefined : input.dtype);
    view.constant.push_back(input.constant);
    view.shapes.push_back(input.shape);
    view.rank_known.push_back(input.rank_known);
  }
  view.output_count = fused.outputs.size();
  view.output_used.assign(fused.outputs.size(), true);
  return view;
}

}  // namespace

bool IsTooLargeToCopy(const ValueView& constant) {
  return static_cast<int64_t>(BytesFor(constant.dtype, std::max<int64_t>(0, constant.StaticElements()))) >
         kMostCopiedBytes;
}

bool StoresTwice(const FusionGraph& graph, const FusedNode& fused) {
  auto within = ReadersWithin(graph, fused);
  return std::any_of(fused.inputs.begin(), fused.inputs.end(), [&](const ValueView& input) {
    return input.constant && graph.Readers(input) > within[input.name] && IsTooLargeToCopy(input);
  });
}

const OpDef* FindDefinition(const FusedNode& fused, bool late_inputs) {
  const OpDef* def = OpRegistry::Instance().Find(fused.domain, fused.type, fused.version);
  if (def == nullptr || ReadsValueOnHost(*def, fused, late_inputs)) return nullptr;
  const auto fits = [](const ValueView& value) {
    return value.info == nullptr || (value.is_tensor && !value.out_of_reach &&
                                     (!value.rank_known || value.shape.size() <= static_cast<size_t>(Shape::kMaxRank)));
  };
  if (!std::all_of(fused.inputs.begin(), fused.inputs.end(), fits) ||
      !std::all_of(fused.outputs.begin(), fused.outputs.end(), fits))
    return nullptr;
  if (!WhyAttributesUnsupported(*def, fused.attributes).empty()) return nullptr;
  return WhyUnsupported(*def, ViewOf(fused)).empty() ? def : nullptr;
}

GraphNode Fusion::AsNode(const std::vector<GraphNode>& nodes) const {
  GraphNode node;
  node.name = nodes[last()].name;
  node.domain = fused.domain;
  node.inputs = fused.inputs;
  node.outputs = fused.outputs;
  node.view = ViewOf(fused);
  return node;
}

FusedNode GroupOfOne(const GraphNode& node, size_t index) {
  return {.domain = node.domain,
          .type = node.view.op_type,
          .version = node.view.since_version,
          .inputs = node.inputs,
          .outputs = node.outputs,
          .attributes = node.view.attributes,
          .nodes = {index}};
}

namespace {

std::vector<Fusion> Plan(const FusionGraph& graph, bool late_inputs) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  std::vector<Fusion> found;
  for (const GraphNode& last : nodes) {
    if (last.outputs.empty() || last.outputs[0].info == nullptr) continue;
    for (const FusionRule rule : FusionRules()) {
      std::optional<FusedNode> fused = rule(graph, last);
      if (!fused || !IsClosed(graph, *fused)) continue;
      if (const OpDef* def = FindDefinition(*fused, late_inputs)) {
        std::sort(fused->nodes.begin(), fused->nodes.end());
        found.push_back({std::move(*fused), def});
      }
    }
  }
  // Rules register in any order: the choice must not depend on it.
  std::sort(found.begin(), found.end(), [](const Fusion& a, const Fusion& b) {
    const auto key = [](const Fusion& f) {
      return std::make_pair(-static_cast<int64_t>(f.fused.nodes.size()), f.last());
    };
    return key(a) != key(b) ? key(a) < key(b) : a.fused.type < b.fused.type;
  });
  std::vector<bool> taken(nodes.size(), false);
  std::vector<Fusion> chosen;
  for (Fusion& fusion : found) {
    const std::vector<size_t>& group = fusion.fused.nodes;
    if (std::any_of(group.begin(), group.end(), [&](size_t n) { return taken[n]; })) continue;
    chosen.push_back(std::move(fusion));
    // All nodes of a group of one result are before what reads it.
    if (chosen.back().fused.outputs.size() > 1 && !AreOrdered(graph, chosen)) {
      chosen.pop_back();
      continue;
    }
    for (const size_t n : chosen.back().fused.nodes) taken[n] = true;
  }
  return chosen;
}

}  // namespace

std::vector<Fusion> PlanFusions(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs) {
  return Plan(FusionGraph(api, nodes), late_inputs);
}

std::optional<Fusion> FindFusionOfAll(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs) {
  for (Fusion& fusion : Plan(FusionGraph(api, nodes, /*of_group=*/true), late_inputs))
    if (fusion.fused.nodes.size() == nodes.size()) return std::move(fusion);
  return std::nullopt;
}

}  // namespace npu::provider
