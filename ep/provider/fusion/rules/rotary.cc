// x * cos + concat(-second half, first half) * sin along the last axis, as transformers writes rotary embeddings, is
// npu_rotary_mul: the halves by Slice or Split, tables that broadcast to x.
#include <algorithm>

#include "ep/provider/fusion/rule.h"

namespace npu::provider {
namespace {

int64_t LastAxis(const ValueView& value) { return static_cast<int64_t>(value.shape.size()) - 1; }
bool IsLastAxis(int64_t axis, const ValueView& value) { return axis == -1 || axis == LastAxis(value); }

// The one integer of a constant input; none if it is absent, or no such constant.
std::optional<int64_t> OneInt(const FusionGraph& graph, const GraphNode& node, size_t input) {
  if (input >= node.inputs.size()) return std::nullopt;
  const auto ints = graph.Ints(node.inputs[input]);
  return ints && ints->size() == 1 ? std::optional(ints->front()) : std::nullopt;
}

// Whether `part` is x[..., begin:end] by a Slice; `size`: of the axis.
bool TakeSlice(FusionMatch& match, const ValueView& part, const ValueView& x, int64_t begin, int64_t end,
               int64_t size) {
  const FusionGraph& graph = match.graph();
  const GraphNode* slice = match.TakeProducer(part, "Slice");
  if (slice == nullptr || slice->inputs.size() < 4 || slice->inputs[0].name != x.name) return false;
  const auto from = OneInt(graph, *slice, 1), to = OneInt(graph, *slice, 2), axis = OneInt(graph, *slice, 3);
  if (!from || !to || !axis || !IsLastAxis(*axis, x)) return false;
  if (slice->inputs.size() > 4 && slice->inputs[4].info != nullptr && OneInt(graph, *slice, 4) != 1) return false;
  const auto counted = [size](int64_t at) { return at < 0 ? at + size : std::min(at, size); };
  return counted(*from) == begin && counted(*to) == end;
}

// Whether `part` is output `half` of a Split of x into halves.
bool TakeHalf(FusionMatch& match, const ValueView& part, const ValueView& x, size_t half) {
  const GraphNode* split = match.TakeProducer(part, "Split");
  if (split == nullptr || split->inputs[0].name != x.name || split->outputs.size() != 2 ||
      split->outputs[half].name != part.name || !IsLastAxis(split->view.attributes.Int("axis", 0), x))
    return false;
  // Their widths are equal if the parts are: those of x add up to it.
  return part.rank_known && part.shape.size() == x.shape.size() && part.shape.back() * 2 == x.shape.back();
}

bool TakePart(FusionMatch& match, const ValueView& part, const ValueView& x, size_t half) {
  const int64_t size = x.shape.back(), middle = size / 2;
  FusionMatch with = match;
  if (TakeSlice(with, part, x, half == 0 ? 0 : middle, half == 0 ? middle : size, size)) {
    match = with;
    return true;
  }
  return TakeHalf(match, part, x, half);
}

// Whether each dimension of the table is 1 or that of x, known or by name: npu_rotary_mul does not broadcast x.
bool Broadcasts(const FusionGraph& graph, const ValueView& table, const ValueView& x) {
  const auto from = graph.Dims(table), to = graph.Dims(x);
  if (!from || !to || from->empty() || from->size() > to->size()) return false;
  for (size_t d = 0; d < from->size(); ++d) {
    const std::string& dim = (*from)[d];
    if (dim != "1" && (dim.empty() || dim != (*to)[to->size() - from->size() + d])) return false;
  }
  return true;
}

// The sine of sin * concat(-second half of x, first half of x).
const ValueView* TakeRotatedHalf(FusionMatch& match, const ValueView& value, const ValueView& x) {
  const GraphNode* product = match.TakeProducer(value, "Mul");
  for (size_t i = 0; product != nullptr && i < 2; ++i) {
    FusionMatch with = match;
    const GraphNode* halves = with.TakeProducer(product->inputs[i], "Concat");
    if (halves == nullptr || halves->inputs.size() != 2 || !IsLastAxis(halves->view.attributes.Int("axis", 0), x))
      continue;
    const GraphNode* negated = with.TakeProducer(halves->inputs[0], "Neg");
    if (negated == nullptr || !TakePart(with, negated->inputs[0], x, 1) || !TakePart(with, halves->inputs[1], x, 0))
      continue;
    match = with;
    return &OtherOf(*product, i);
  }
  return nullptr;
}

std::optional<FusedNode> MatchRotary(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  if (match.Take(&last, "Add") == nullptr) return std::nullopt;
  for (size_t i = 0; i < 4; ++i) {
    FusionMatch with = match;
    const GraphNode* straight = with.TakeProducer(last.inputs[i / 2], "Mul");
    if (straight == nullptr) continue;
    const ValueView &x = straight->inputs[i % 2], &cos = OtherOf(*straight, i % 2);
    if (!x.rank_known || x.shape.empty() || x.shape.back() < 2 || x.shape.back() % 2 != 0) continue;
    const ValueView* sin = TakeRotatedHalf(with, OtherOf(last, i / 2), x);
    if (sin == nullptr || !Broadcasts(graph, cos, x) || !Broadcasts(graph, *sin, x)) continue;
    return FusedNode{.domain = "npu",
                     .type = "NPURotaryMul",
                     .inputs = {x, cos, *sin},
                     .outputs = last.outputs,
                     .nodes = with.nodes()};
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchRotary);

}  // namespace
}  // namespace npu::provider
