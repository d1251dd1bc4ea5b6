#include "ep/provider/fusion/channels_last.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace npu::provider {
namespace {

constexpr const char* kChannelsLast = "npu.channels_last";

// Whether a reduction over the positions of images is their mean, [N, C, 1, 1].
bool IsGlobalMean(const FusionGraph& graph, const GraphNode& node) {
  if (node.view.op_type != "ReduceMean" || !node.domain.empty() || node.inputs[0].shape.size() != 4) return false;
  const Attributes& attributes = node.view.attributes;
  std::vector<int64_t> axes = attributes.Ints("axes");
  if (node.inputs.size() > 1 && node.inputs[1].info != nullptr) axes = graph.Ints(node.inputs[1]).value_or(axes);
  for (int64_t& axis : axes) axis = axis < 0 ? axis + 4 : axis;
  std::sort(axes.begin(), axes.end());
  return axes == std::vector<int64_t>{2, 3} && attributes.Int("keepdims", 1) == 1;
}

// A node as an operator that domain npu.channels_last may have.
FusedNode OperatorOf(const FusionGraph& graph, const GraphNode& node) {
  FusedNode fused = GroupOfOne(node, graph.IndexOf(node));
  if (IsGlobalMean(graph, node)) {
    fused.type = "GlobalAveragePool";
    fused.inputs.resize(1);
    fused.attributes = {};
  }
  return fused;
}

bool IsConvolution(const FusedNode& fused) {
  return fused.type == "Conv" || fused.type == "FusedConv" || fused.type == "ConvBatchNormalization";
}

// Whether the two orders of the value's elements differ.
bool HasTwoOrders(const ValueView& value) {
  if (value.info == nullptr || !value.is_tensor || !value.rank_known || value.shape.size() != 4) return false;
  return value.dtype == DType::kFloat32 && !(value.shape[2] == 1 && value.shape[3] == 1);
}

template <class T>
T FallbackOf(const OpDef& def, std::string_view attribute) {
  for (const AttrDef& candidate : def.attributes)
    if (candidate.name == attribute && candidate.fallback) return std::get<T>(*candidate.fallback);
  return T{};
}

// An operator that can read and write channels last, as its definition says.
struct Candidate {
  Fusion form;                   // in domain npu.channels_last
  std::optional<size_t> fusion;  // its place among the fusions; none of a node by itself
  std::vector<int64_t> inputs = {};
  bool output = false;
  // What was decided.
  std::vector<int64_t> chosen = {};
  bool chosen_output = false;
  bool alone = false;
};

std::optional<Candidate> CandidateOf(FusedNode fused, std::optional<size_t> fusion, bool late_inputs) {
  if (!fused.domain.empty() && fused.domain != "npu.fused") return std::nullopt;
  if (fused.outputs.empty() || fused.outputs[0].info == nullptr) return std::nullopt;
  fused.domain = kChannelsLast;
  fused.version = 1;
  const OpDef* def = FindDefinition(fused, late_inputs);
  if (def == nullptr) return std::nullopt;
  Candidate candidate{{std::move(fused), def}, fusion};
  const FusedNode& form = candidate.form.fused;
  for (const int64_t i : FallbackOf<std::vector<int64_t>>(*def, "channels_last_inputs"))
    if (static_cast<size_t>(i) < form.inputs.size() && HasTwoOrders(form.inputs[static_cast<size_t>(i)]))
      candidate.inputs.push_back(i);
  candidate.output = FallbackOf<int64_t>(*def, "channels_last_output") != 0 && HasTwoOrders(form.outputs[0]);
  return candidate;
}

// The operators of each chain, numbered by one of its members; operators without channels last are alone.
class Chains {
 public:
  explicit Chains(size_t count) : leader_(count) { std::iota(leader_.begin(), leader_.end(), size_t{0}); }
  size_t Of(size_t i) {
    while (leader_[i] != i) i = leader_[i] = leader_[leader_[i]];
    return i;
  }
  void Join(size_t a, size_t b) { leader_[Of(a)] = Of(b); }

 private:
  std::vector<size_t> leader_;
};

// An operator that pays although it converts what it reads and writes has a type of its own.
std::string AloneType(const FusedNode& fused) { return "Lone" + fused.type; }

void TryAlone(Candidate& candidate, bool late_inputs) {
  FusedNode alone = candidate.form.fused;
  alone.type = AloneType(alone);
  if (const OpDef* def = FindDefinition(alone, late_inputs)) {
    candidate.form.def = def;
    candidate.alone = true;
  }
}

// Chooses the values that nothing but candidates reads, in chains of two convolutions or more: their ends convert. A
// convolution without such neighbours may pay by itself.
void Choose(const FusionGraph& graph, bool late_inputs, std::vector<Candidate>& candidates) {
  struct Reader {
    size_t candidate;
    int64_t input;
  };
  std::unordered_map<std::string_view, std::vector<Reader>> readers;
  for (size_t c = 0; c < candidates.size(); ++c)
    for (const int64_t i : candidates[c].inputs)
      readers[candidates[c].form.fused.inputs[static_cast<size_t>(i)].name].push_back({c, i});
  Chains chains(candidates.size());
  for (size_t c = 0; c < candidates.size(); ++c) {
    const ValueView& value = candidates[c].form.fused.outputs[0];
    const std::vector<Reader>& its = readers[value.name];
    if (!candidates[c].output || value.graph_output || its.empty() || its.size() != graph.Readers(value)) continue;
    candidates[c].chosen_output = true;
    for (const Reader& reader : its) {
      candidates[reader.candidate].chosen.push_back(reader.input);
      chains.Join(c, reader.candidate);
    }
  }
  std::vector<size_t> convolutions(candidates.size(), 0);
  for (size_t c = 0; c < candidates.size(); ++c)
    if (IsConvolution(candidates[c].form.fused)) ++convolutions[chains.Of(c)];
  for (size_t c = 0; c < candidates.size(); ++c) {
    if (convolutions[chains.Of(c)] >= 2) continue;
    candidates[c].chosen.clear();
    candidates[c].chosen_output = false;
    TryAlone(candidates[c], late_inputs);
  }
}

}  // namespace

void ChannelsLast::Apply(const Layout& layout, FusedNode& fused) {
  if (layout.alone) fused.type = AloneType(fused);
  fused.domain = kChannelsLast;
  fused.version = 1;
  fused.attributes.Set("channels_last_inputs", layout.inputs);
  fused.attributes.Set("channels_last_output", int64_t{layout.output});
}

void ChannelsLast::Plan(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs,
                        const std::function<bool(size_t)>& left_out, std::vector<Fusion>& fusions) {
  layouts_.clear();
  const FusionGraph graph(api, nodes);
  std::vector<bool> taken(nodes.size(), false);
  std::vector<Candidate> candidates;
  const auto add = [&](FusedNode fused, std::optional<size_t> fusion) {
    if (std::any_of(fused.nodes.begin(), fused.nodes.end(), left_out)) return;
    auto candidate = CandidateOf(std::move(fused), fusion, late_inputs);
    if (candidate && !StoresTwice(graph, candidate->form.fused)) candidates.push_back(std::move(*candidate));
  };
  for (size_t f = 0; f < fusions.size(); ++f) {
    for (const size_t n : fusions[f].fused.nodes) taken[n] = true;
    add(fusions[f].fused, f);
  }
  for (size_t n = 0; n < nodes.size(); ++n)
    if (!taken[n] && nodes[n].unreadable.empty()) add(OperatorOf(graph, nodes[n]), std::nullopt);
  Choose(graph, late_inputs, candidates);
  for (Candidate& candidate : candidates) {
    if (candidate.chosen.empty() && !candidate.chosen_output && !candidate.alone) continue;
    FusedNode& fused = candidate.form.fused;
    Layout layout{std::move(candidate.chosen), candidate.chosen_output, candidate.alone};
    Apply(layout, fused);
    layouts_[fused.outputs[0].name] = std::move(layout);
    if (candidate.fusion) {
      fusions[*candidate.fusion] = std::move(candidate.form);
    } else {
      fusions.push_back(std::move(candidate.form));
    }
  }
}

std::optional<Fusion> ChannelsLast::Take(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs) {
  if (nodes.empty() || nodes.back().outputs.empty()) return std::nullopt;
  const auto found = layouts_.find(nodes.back().outputs[0].name);
  if (found == layouts_.end()) return std::nullopt;
  FusedNode fused;
  if (std::optional<Fusion> group = FindFusionOfAll(api, nodes, late_inputs)) {
    fused = std::move(group->fused);
  } else if (nodes.size() == 1) {
    fused = OperatorOf(FusionGraph(api, nodes), nodes[0]);
  } else {
    return std::nullopt;
  }
  Apply(found->second, fused);
  const OpDef* def = FindDefinition(fused, late_inputs);
  if (def == nullptr) return std::nullopt;
  layouts_.erase(found);
  return Fusion{std::move(fused), def};
}

}  // namespace npu::provider
