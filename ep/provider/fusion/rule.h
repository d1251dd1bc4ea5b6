// A fusion rule: recognises a group of nodes and names the operator of the registry that computes the same.
//
// A rule is one file in rules/ that registers itself. It is asked at every node whether this is the last one of a
// group, or, in a group of several results, the one that it chooses. It checks what decides the result: types, axes,
// shapes, constants. What holds for every group is checked for it (plan.cc): that nothing outside reads an inner value,
// that the nodes can be ordered with the group as one, and that the registry's operator takes these inputs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ep/provider/fusion/graph.h"

namespace npu::provider {

// The operator that computes what a group of nodes computes.
struct FusedNode {
  std::string domain = "", type;  // "": that of ONNX
  int version = 1;
  std::vector<ValueView> inputs = {};  // without an `info`: omitted
  std::vector<ValueView> outputs = {};
  Attributes attributes = {};
  std::vector<size_t> nodes = {};  // the group
};

// The fused operator of the group that `last` stands for; null if there is none.
using FusionRule = std::optional<FusedNode> (*)(const FusionGraph& graph, const GraphNode& last);

// In an unspecified order.
const std::vector<FusionRule>& FusionRules();

struct FusionRegistrar {
  explicit FusionRegistrar(FusionRule rule);
};

// The nodes that a rule has recognised so far. A copy tries another way to go on.
class FusionMatch {
 public:
  explicit FusionMatch(const FusionGraph& graph) : graph_(&graph) {}

  // Takes `node` into the group and returns it if it is an operator of this type, of ONNX if no domain is given; null
  // otherwise, and for null.
  const GraphNode* Take(const GraphNode* node, std::string_view type, std::string_view domain = "");
  // Takes the node of this type that computes `value`.
  const GraphNode* TakeProducer(const ValueView& value, std::string_view type, std::string_view domain = "");

  const FusionGraph& graph() const { return *graph_; }
  const std::vector<size_t>& nodes() const { return nodes_; }

 private:
  const FusionGraph* graph_;
  std::vector<size_t> nodes_;  // each once
};

// Of a node of two inputs: the one that is not input `i`.
inline const ValueView& OtherOf(const GraphNode& node, size_t i) { return node.inputs[1 - i]; }

}  // namespace npu::provider

// NPU_FUSION_RULE(MatchX): registers the rule.
#define NPU_FUSION_RULE(match) static const ::npu::provider::FusionRegistrar match##_registrar(&match)
