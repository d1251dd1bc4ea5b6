#include "ep/provider/copy_cost.h"

#include <algorithm>
#include <unordered_map>

#include "ep/provider/min_cut.h"
#include "ep/provider/shape_arithmetic.h"

namespace npu::provider {
namespace {

// What a copy costs beside its bytes, the wait for the stream, as bytes that take as long.
constexpr int64_t kBytesOfOneCopy = 64 << 10;
// The assumed size of a dimension that only a run knows.
constexpr int64_t kAssumedDimension = 32;

int64_t CostOf(const ValueView& value) {
  int64_t elements = value.rank_known ? 1 : kAssumedDimension;
  for (const int64_t dim : value.shape)
    if (__builtin_mul_overflow(elements, dim < 0 ? kAssumedDimension : dim, &elements)) return MinCut::kNever / 2;
  constexpr int64_t kMost = int64_t{1} << 40;
  return kBytesOfOneCopy + static_cast<int64_t>(BytesFor(value.dtype, std::min(elements, kMost)));
}

// The division of a graph's nodes between the CPU, the source of the cut, and the NPU, its sink. A value is copied once
// if a node on the other side than its own reads it.
class Division {
 public:
  Division(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs, const std::vector<Side>& sides)
      : nodes_(nodes), defs_(defs), sides_(sides), cpu_(cut_.AddVertex()), npu_(cut_.AddVertex()) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      vertices_.push_back(VertexOf(n));
      for (size_t i = 0; i < nodes[n].outputs.size(); ++i)
        if (nodes[n].outputs[i].info != nullptr)
          producers_[nodes[n].outputs[i].name] = IsWrittenOnHost(n, i) ? kNowhere : vertices_[n];
    }
  }

  void AddValues(const std::vector<std::vector<const char*>>& implicit_inputs) {
    std::unordered_map<std::string_view, Value> values;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (size_t i = 0; i < nodes_[n].inputs.size(); ++i) {
        const ValueView& input = nodes_[n].inputs[i];
        if (input.info == nullptr || input.constant || ReadsOnHost(n, i)) continue;
        Value& value = values[input.name];
        value.view = &input;
        Read(value, n);
      }
      for (const char* name : implicit_inputs[n]) Read(values[name], n);
      for (const ValueView& output : nodes_[n].outputs) {
        if (output.info == nullptr) continue;
        Value& value = values[output.name];
        value.view = &output;
        if (output.graph_output) value.readers.push_back(npu_);
      }
    }
    for (const auto& [name, value] : values) AddCopies(name, value);
  }

  std::vector<bool> OnCpu() {
    const std::vector<bool> on_source = cut_.SourceSide(cpu_, npu_);
    std::vector<bool> out;
    for (size_t n = 0; n < nodes_.size(); ++n) out.push_back(sides_[n] == Side::kEither && on_source[vertices_[n]]);
    return out;
  }

 private:
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  struct Value {
    const ValueView* view = nullptr;
    std::vector<size_t> readers;  // vertices
  };

  size_t VertexOf(size_t node) {
    switch (sides_[node]) {
      case Side::kCpu:
        return cpu_;
      case Side::kNpu:
        return npu_;
      case Side::kEither:
        return cut_.AddVertex();
      case Side::kNeutral:
        break;
    }
    return kNowhere;
  }

  // On the host, wherever the node runs.
  bool ReadsOnHost(size_t node, size_t input) const {
    const ArgDef* arg = defs_[node] == nullptr ? nullptr : ArgAt(defs_[node]->inputs, input);
    return arg != nullptr && arg->cpu;
  }

  bool IsWrittenOnHost(size_t node, size_t output) const {
    const ArgDef* arg = defs_[node] == nullptr ? nullptr : ArgAt(defs_[node]->outputs, output);
    return arg != nullptr && arg->cpu;
  }

  void Read(Value& value, size_t node) const {
    if (vertices_[node] != kNowhere) value.readers.push_back(vertices_[node]);
  }

  // A caller may have inputs and outputs of the model in NPU memory, as values of an outer graph may be.
  void AddCopies(std::string_view name, const Value& value) {
    const auto found = producers_.find(name);
    const size_t producer = found == producers_.end() ? npu_ : found->second;
    if (value.view == nullptr || producer == kNowhere) return;
    const int64_t cost = CostOf(*value.view);
    const size_t to_npu = cut_.AddVertex(), to_cpu = cut_.AddVertex();
    cut_.AddEdge(producer, to_npu, cost);
    cut_.AddEdge(to_cpu, producer, cost);
    for (const size_t reader : value.readers) {
      cut_.AddEdge(to_npu, reader, MinCut::kNever);
      cut_.AddEdge(reader, to_cpu, MinCut::kNever);
    }
  }

  const std::vector<GraphNode>& nodes_;
  const std::vector<const OpDef*>& defs_;
  const std::vector<Side>& sides_;
  MinCut cut_;
  const size_t cpu_, npu_;
  std::vector<size_t> vertices_;                            // of the nodes
  std::unordered_map<std::string_view, size_t> producers_;  // vertices, by the value's name
};

}  // namespace

bool IsLight(const GraphNode& node, const OpDef& def) {
  const DTypeSet types = def.light ? DTypeSet{DType::kFloat32} : kHostTypes;
  const auto has_type = [&](const ValueView& value) {
    return value.info == nullptr || (value.is_tensor && types.Contains(value.dtype));
  };
  return (def.light || def.shape_arithmetic != ShapeArithmetic::kNone) &&
         std::all_of(node.inputs.begin(), node.inputs.end(), has_type) &&
         std::all_of(node.outputs.begin(), node.outputs.end(), has_type);
}

std::vector<bool> FindCheaperOnCpu(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
                                   const std::vector<Side>& sides,
                                   const std::vector<std::vector<const char*>>& implicit_inputs) {
  if (std::find(sides.begin(), sides.end(), Side::kCpu) == sides.end()) return std::vector<bool>(nodes.size(), false);
  Division division(nodes, defs, sides);
  division.AddValues(implicit_inputs);
  return division.OnCpu();
}

}  // namespace npu::provider
