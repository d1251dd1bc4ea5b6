// A graph as fusion rules see it: who computes and who reads each value, and the values of constants.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/provider/node_view.h"

namespace npu::provider {

class FusionGraph {
 public:
  // `nodes` in topological order; kept by reference. `of_group`: they are those of a group that was found before.
  FusionGraph(const Api& api, const std::vector<GraphNode>& nodes, bool of_group = false);

  // Whether the nodes outside a group are missing: what a rule asks of them was true when the group was found.
  bool of_group() const { return of_group_; }

  const std::vector<GraphNode>& nodes() const { return nodes_; }
  size_t IndexOf(const GraphNode& node) const { return static_cast<size_t>(&node - nodes_.data()); }
  // Null: an input, a constant, or a value of an outer graph.
  const GraphNode* Producer(const ValueView& value) const;
  // The nodes whose results the node reads, in its subgraphs, too.
  const std::vector<size_t>& Sources(size_t node) const { return sources_[node]; }
  // The inputs that read the value, those of subgraphs included, and one more for an output of the graph.
  size_t Readers(const ValueView& value) const;
  // The node that alone reads the value, once; null if there is none.
  const GraphNode* SoleReader(const ValueView& value) const;

  // Per dimension its number, the name that the model gives it, or "" if neither is known; none without a known rank.
  // Values whose dimensions have one name have one size.
  std::optional<std::vector<std::string>> Dims(const ValueView& value) const;
  // The value of a constant with one element, of any shape and any float or integer type.
  std::optional<double> Scalar(const ValueView& value) const;
  // The elements of a constant of float32.
  std::optional<std::vector<float>> Floats(const ValueView& value) const;
  // The elements of a constant of int64 or int32.
  std::optional<std::vector<int64_t>> Ints(const ValueView& value) const;

 private:
  const Api& api_;
  const std::vector<GraphNode>& nodes_;
  bool of_group_;
  std::unordered_map<std::string_view, size_t> producers_, readers_;
  std::unordered_map<std::string_view, size_t> last_readers_;  // of the nodes
  std::vector<std::vector<size_t>> sources_;
};

// A constant's value in host memory; the caller does not own it.
const OrtValue* ConstantValue(const Api& api, const ValueView& constant);

}  // namespace npu::provider
