#include "ep/provider/shape_arithmetic.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "ep/provider/host_memory_plan.h"

namespace npu::provider {
namespace {

// A value with more elements is data, which is worth a kernel on the device.
constexpr int64_t kMaxElements = 64;
// The assumed length of a graph input of rank 1 and unknown length (lengths, offsets, one per sequence).
constexpr int64_t kAssumedLength = 16;

// Bounds stay far below overflow: a factor above kMaxElements already disqualifies.
int64_t Saturated(int64_t n) { return std::min(n, kMaxElements + 1); }

class Finder {
 public:
  Finder(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs, bool graphs, bool memory_plan)
      : nodes_(nodes), defs_(defs), graphs_(graphs), memory_plan_(memory_plan) {}

  std::vector<bool> Run() {
    FindFeasible();
    while (true) {
      FindDemanded();
      std::vector<bool> keep = Choose();
      if (!memory_plan_ || !Exclude(FindUnsafeViews(nodes_, defs_, keep))) return keep;
    }
  }

 private:
  // Number of elements of a value that may be on the host without harm; nullopt for all others.
  std::optional<int64_t> HostBound(const ValueView& value) const {
    if (!value.is_tensor || !kHostTypes.Contains(value.dtype)) return std::nullopt;
    if (auto found = bound_.find(value.name); found != bound_.end()) return found->second;
    const int64_t stated = value.StaticElements();
    if (value.constant) return stated >= 0 && stated <= kMaxElements ? std::optional(stated) : std::nullopt;
    if (!graphs_ && value.graph_input && value.dtype != DType::kFloat32 && value.rank_known &&
        value.shape.size() <= 1) {
      const int64_t bound = stated >= 0 ? stated : kAssumedLength;
      return bound <= kMaxElements ? std::optional(bound) : std::nullopt;
    }
    return std::nullopt;
  }

  // Bound on the node's output elements; nullopt when the node is not shape arithmetic.
  std::optional<int64_t> OutputBound(const GraphNode& node) const {
    // Any version: a node that the device does not support runs on the CPU, too.
    const OpDef* op = OpRegistry::Instance().FindNewest(node.domain, node.view.op_type);
    if (op == nullptr || op->shape_arithmetic == ShapeArithmetic::kNone) return std::nullopt;
    int64_t first = 1, second = 1, sum = 0, product = 1;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].info == nullptr) continue;
      const auto bound = HostBound(node.inputs[i]);
      if (!bound) return std::nullopt;
      if (i == 0) first = *bound;
      if (i == 1) second = *bound;
      sum = Saturated(sum + *bound);
      product = Saturated(product * std::max<int64_t>(*bound, 1));
    }
    int64_t stated = 0;
    for (const ValueView& output : node.outputs) {
      if (output.info == nullptr) continue;
      if (!output.is_tensor || !kHostTypes.Contains(output.dtype)) return std::nullopt;
      stated = output.StaticElements() < 0 || stated < 0 ? -1 : std::max(stated, Saturated(output.StaticElements()));
    }
    int64_t bound = stated;
    if (bound < 0) {
      switch (op->shape_arithmetic) {
        case ShapeArithmetic::kShape:
          bound = Shape::kMaxRank;
          break;
        case ShapeArithmetic::kFirst:
          bound = first;
          break;
        case ShapeArithmetic::kElementwise:
          bound = product;
          break;
        case ShapeArithmetic::kSum:
          bound = sum;
          break;
        case ShapeArithmetic::kProduct:
          bound = Saturated(first * second);
          break;
        case ShapeArithmetic::kNone:
        case ShapeArithmetic::kStated:
          return std::nullopt;
      }
    }
    return bound <= kMaxElements ? std::optional(bound) : std::nullopt;
  }

  bool OnHostByDefinition(size_t node, size_t output) const {
    const ArgDef* arg = defs_[node] == nullptr ? nullptr : ArgAt(defs_[node]->outputs, output);
    return defs_[node] == nullptr || (arg != nullptr && arg->cpu);
  }

  // Forward pass: finds nodes that could run on the host, and the sizes of values that could be there.
  void FindFeasible() {
    feasible_.assign(nodes_.size(), false);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const GraphNode& node = nodes_[n];
      const auto bound = OutputBound(node);
      feasible_[n] = bound.has_value() && defs_[n] != nullptr;
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const ValueView& output = node.outputs[i];
        if (output.info == nullptr || !kHostTypes.Contains(output.dtype)) continue;
        if (bound) {
          bound_[output.name] = *bound;
        } else if (OnHostByDefinition(n, i)) {
          const int64_t stated = output.StaticElements();
          const int64_t size = stated < 0 && output.rank_known && output.shape.size() <= 1 ? Shape::kMaxRank : stated;
          if (size >= 0 && size <= kMaxElements) bound_[output.name] = size;
        }
      }
    }
  }

  // Whether a node was excluded that was not before.
  bool Exclude(const std::vector<bool>& excluded) {
    bool any = false;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      any = any || (excluded[n] && feasible_[n]);
      feasible_[n] = feasible_[n] && !excluded[n];
    }
    return any;
  }

  // Backward pass: finds nodes whose output is needed on the host, directly or through other such nodes.
  void FindDemanded() {
    std::unordered_map<std::string_view, bool> wanted;
    demanded_.assign(nodes_.size(), false);
    for (size_t n = nodes_.size(); n-- > 0;) {
      const GraphNode& node = nodes_[n];
      for (const ValueView& output : node.outputs) {
        if (output.info != nullptr && wanted[output.name]) demanded_[n] = true;
      }
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i].info == nullptr) continue;
        const ArgDef* arg = defs_[n] == nullptr ? nullptr : ArgAt(defs_[n]->inputs, i);
        const bool by_kernel = defs_[n] == nullptr || (arg != nullptr && ReadOnHost(*arg, graphs_));
        if (by_kernel || (feasible_[n] && demanded_[n])) wanted[node.inputs[i].name] = true;
      }
    }
  }

  // Second forward pass, with the values that actually are on the host.
  std::vector<bool> Choose() const {
    std::unordered_map<std::string_view, bool> on_host;
    std::vector<bool> keep(nodes_.size(), false);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const GraphNode& node = nodes_[n];
      bool available = true, saves_a_copy = false;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueView& input = node.inputs[i];
        if (input.info == nullptr) continue;
        const bool here = on_host[input.name];
        available = available && (here || input.constant || (input.graph_input && !graphs_));
        const ArgDef* arg = defs_[n] == nullptr ? nullptr : ArgAt(defs_[n]->inputs, i);
        saves_a_copy = saves_a_copy || (here && (arg == nullptr || !ReadOnHost(*arg, graphs_)));
      }
      keep[n] = feasible_[n] && available && (demanded_[n] || saves_a_copy);
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (node.outputs[i].info != nullptr && (keep[n] || OnHostByDefinition(n, i)))
          on_host[node.outputs[i].name] = true;
      }
    }
    return keep;
  }

  const std::vector<GraphNode>& nodes_;
  const std::vector<const OpDef*>& defs_;
  const bool graphs_, memory_plan_;
  std::unordered_map<std::string_view, int64_t> bound_;
  std::vector<bool> feasible_, demanded_;
};

}  // namespace

std::vector<bool> FindShapeArithmetic(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
                                      bool graphs, bool memory_plan) {
  return Finder(nodes, defs, graphs, memory_plan).Run();
}

}  // namespace npu::provider
