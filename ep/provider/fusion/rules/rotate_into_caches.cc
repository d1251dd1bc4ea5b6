// A joined projection of queries, keys and values that is split into heads, of which queries and keys are rotated and
// keys and values are scattered into caches: one pass over the projection.
#include "ep/provider/fusion/rule.h"

namespace npu::provider {
namespace {

using Ints = std::vector<int64_t>;

bool IsOmitted(const GraphNode& node, size_t input) {
  return input >= node.inputs.size() || node.inputs[input].info == nullptr;
}

bool Has4Axes(const ValueView& value) { return value.rank_known && value.shape.size() == 4; }

// Reshape of [batch, tokens, heads * size] to [batch, tokens, heads, size].
bool SeparatesHeads(const FusionGraph& graph, const GraphNode& reshape, int64_t heads, int64_t size) {
  const ValueView& rows = reshape.inputs[0];
  if (!rows.rank_known || rows.shape.size() != 3 || rows.shape[2] != heads * size) return false;
  const auto target = graph.Ints(reshape.inputs[1]);
  return reshape.view.attributes.Int("allowzero", 0) == 0 &&
         (target == Ints{0, 0, heads, size} || target == Ints{0, -1, heads, size});
}

// The rotation of a part of the projection that nothing else reads.
const GraphNode* TakeRotation(FusionMatch& match, const ValueView& heads) {
  const GraphNode* rotary = match.Take(match.graph().SoleReader(heads), "NPURotaryMul", "npu");
  return rotary != nullptr && rotary->inputs[0].name == heads.name && IsOmitted(*rotary, 3) ? rotary : nullptr;
}

std::optional<FusedNode> MatchRotateIntoCaches(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  // Named by the node that scatters the values.
  if (match.Take(&last, "NPUScatterNdUpdate", "npu") == nullptr) return std::nullopt;
  const GraphNode* split = match.TakeProducer(last.inputs[2], "Split");
  if (split == nullptr || split->outputs.size() != 3 || split->outputs[2].name != last.inputs[2].name ||
      split->view.attributes.Int("axis", 0) != 1 || IsOmitted(*split, 1) || !Has4Axes(split->inputs[0]))
    return std::nullopt;
  const int64_t heads = split->inputs[0].shape[1], size = split->inputs[0].shape[3];
  const std::optional<Ints> parts = graph.Ints(split->inputs[1]);
  if (heads <= 0 || size <= 0 || size % 2 != 0 || !parts || parts->size() != 3 || (*parts)[1] != (*parts)[2])
    return std::nullopt;

  const GraphNode* transpose = match.TakeProducer(split->inputs[0], "Transpose");
  if (transpose == nullptr || transpose->view.attributes.Ints("perm") != Ints{0, 2, 1, 3}) return std::nullopt;
  const GraphNode* reshape = match.TakeProducer(transpose->inputs[0], "Reshape");
  if (reshape == nullptr || !SeparatesHeads(graph, *reshape, heads, size)) return std::nullopt;

  const GraphNode *queries = TakeRotation(match, split->outputs[0]), *keys = TakeRotation(match, split->outputs[1]);
  if (queries == nullptr || keys == nullptr) return std::nullopt;
  const std::string mode = queries->view.attributes.String("rotary_mode", "half");
  const ValueView &cos = queries->inputs[1], &sin = queries->inputs[2];
  if (keys->inputs[1].name != cos.name || keys->inputs[2].name != sin.name ||
      keys->view.attributes.String("rotary_mode", "half") != mode)
    return std::nullopt;
  for (const ValueView* table : {&cos, &sin})
    if (!Has4Axes(*table) || table->shape[1] != 1 || table->shape[3] != size) return std::nullopt;

  const GraphNode* scatter = match.Take(graph.SoleReader(keys->outputs[0]), "NPUScatterNdUpdate", "npu");
  if (scatter == nullptr || scatter->inputs[2].name != keys->outputs[0].name ||
      scatter->inputs[1].name != last.inputs[1].name)
    return std::nullopt;
  const ValueView& indices = last.inputs[1];
  if (!Has4Axes(indices) || indices.shape[3] != 3) return std::nullopt;
  for (const GraphNode* cache : {scatter, &last}) {
    const ValueView& past = cache->inputs[0];
    if (!Has4Axes(past) || past.shape[1] != (*parts)[1] || past.shape[3] != size) return std::nullopt;
  }

  Attributes attributes;
  attributes.Set("rotary_mode", mode);
  return FusedNode{.domain = "npu.fused",
                   .type = "RotateIntoCaches",
                   .inputs = {reshape->inputs[0], cos, sin, scatter->inputs[0], last.inputs[0], indices},
                   .outputs = {queries->outputs[0], scatter->outputs[0], last.outputs[0]},
                   .attributes = std::move(attributes),
                   .nodes = match.nodes()};
}

NPU_FUSION_RULE(MatchRotateIntoCaches);

}  // namespace
}  // namespace npu::provider
