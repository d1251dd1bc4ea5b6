// Routed experts as torch.onnx writes transformers' batched_mm, with a copy of its experts' weights for each token: the
// best of Softmax(logits) are chosen by TopK and may be divided by their sum; each token is repeated for its experts,
// multiplied by the gate and the values, joined in one weight, halved, gated by SiLU, multiplied again, weighted and
// summed. It is com.microsoft's MoE. A model of 16-bit floats computes the shares, and may compute the sum, in float32;
// the kernel does, too. Shares of 16 bits are no match: MoE chooses by the logits, and where two of them differ their
// rounded shares may not, of which TopK takes the first.
#include "ep/provider/fusion/rule.h"

namespace npu::provider {
namespace {

using Ints = std::vector<int64_t>;

bool IsConstant(const FusionGraph& graph, const GraphNode& node, size_t input, const Ints& expected) {
  return input < node.inputs.size() && graph.Ints(node.inputs[input]) == expected;
}

// The value before a Cast between float32 and a 16-bit type, if there is one.
const ValueView& BeforeCast(FusionMatch& match, const ValueView& value) {
  const GraphNode* cast = match.graph().Producer(value);
  if (cast == nullptr || cast->view.op_type != "Cast") return value;
  constexpr DTypeSet kFloats{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const DType from = cast->inputs[0].dtype, to = value.dtype;
  if (!kFloats.Contains(from) || !kFloats.Contains(to) || (from != DType::kFloat32) == (to != DType::kFloat32))
    return value;
  match.Take(cast, "Cast");
  return cast->inputs[0];
}

// The value that a Reshape or Unsqueeze gives another shape, with this constant as its second input.
const ValueView* TakeReshaped(FusionMatch& match, const ValueView& value, const char* type, const Ints& expected) {
  const GraphNode* node = match.TakeProducer(value, type);
  return node != nullptr && IsConstant(match.graph(), *node, 1, expected) ? &node->inputs[0] : nullptr;
}

// A column, behind all other axes of the value it is made of.
const ValueView* TakeColumnOf(FusionMatch& match, const ValueView& value) {
  FusionMatch with = match;
  for (const int64_t axis : {int64_t{-1}, static_cast<int64_t>(value.shape.size()) - 1}) {
    const ValueView* found = TakeReshaped(with, value, "Unsqueeze", {axis});
    if (found == nullptr) continue;
    match = with;
    return found;
  }
  return nullptr;
}

// Each token's experts and what they add to it.
struct Router {
  ValueView logits;
  const GraphNode* best;
  int64_t k;
  bool normalized;
};

bool IsOverLastOfTwo(const GraphNode& node, int64_t fallback) {
  const int64_t axis = node.view.attributes.Int("axis", fallback);
  return node.inputs[0].shape.size() == 2 && (axis == -1 || axis == 1);
}

// The sum of each row, beside the row.
bool IsSumOfRows(FusionMatch& match, const ValueView& sum, const ValueView& of) {
  const GraphNode* node = match.TakeProducer(sum, "ReduceSum");
  return node != nullptr && node->inputs[0].name == of.name && node->view.attributes.Int("keepdims", 1) == 1 &&
         (IsConstant(match.graph(), *node, 1, {-1}) || IsConstant(match.graph(), *node, 1, {1}));
}

std::optional<Router> TakeRouter(FusionMatch& match, const ValueView& given) {
  const ValueView* shares = &BeforeCast(match, given);
  FusionMatch with = match;
  const GraphNode* quotient = with.TakeProducer(*shares, "Div");
  const bool normalized = quotient != nullptr && IsSumOfRows(with, quotient->inputs[1], quotient->inputs[0]);
  if (normalized) {
    match = with;
    shares = &quotient->inputs[0];
  }
  const GraphNode* best = match.TakeProducer(*shares, "TopK");
  if (best == nullptr || best->outputs.size() != 2 || best->outputs[0].name != shares->name ||
      best->view.attributes.Int("largest", 1) != 1 || !IsOverLastOfTwo(*best, -1))
    return std::nullopt;
  const auto k = match.graph().Ints(best->inputs[1]);
  const GraphNode* softmax = match.TakeProducer(best->inputs[0], "Softmax");
  if (!k || k->size() != 1 || softmax == nullptr || softmax->view.since_version < 13 || !IsOverLastOfTwo(*softmax, -1))
    return std::nullopt;
  return Router{BeforeCast(match, softmax->inputs[0]), best, k->front(), normalized};
}

// A matmul of each row by the weight of its expert.
struct Layer {
  ValueView weight, experts, rows;
};

std::optional<Layer> TakeLayer(FusionMatch& match, const ValueView& value) {
  const GraphNode* squeeze = match.TakeProducer(value, "Squeeze");
  if (squeeze == nullptr ||
      !(IsConstant(match.graph(), *squeeze, 1, {-1}) || IsConstant(match.graph(), *squeeze, 1, {2})))
    return std::nullopt;
  const GraphNode* product = match.TakeProducer(squeeze->inputs[0], "MatMul");
  if (product == nullptr) return std::nullopt;
  const GraphNode* gather = match.TakeProducer(product->inputs[0], "GatherND");
  if (gather == nullptr || gather->view.attributes.Int("batch_dims", 0) != 0) return std::nullopt;
  const ValueView* rows = TakeColumnOf(match, product->inputs[1]);
  const ValueView* experts = TakeColumnOf(match, gather->inputs[1]);
  if (rows == nullptr || experts == nullptr || gather->inputs[0].shape.size() != 3) return std::nullopt;
  return Layer{gather->inputs[0], *experts, *rows};
}

// silu(first half) * second half of rows; returns the whole.
const ValueView* TakeGated(FusionMatch& match, const ValueView& value) {
  const GraphNode* product = match.TakeProducer(value, "Mul");
  for (size_t i = 0; product != nullptr && i < 2; ++i) {
    FusionMatch with = match;
    const GraphNode* silu = with.TakeProducer(product->inputs[i], "Mul");
    for (size_t j = 0; silu != nullptr && j < 2; ++j) {
      const GraphNode* gate = with.TakeProducer(silu->inputs[j], "Sigmoid");
      if (gate == nullptr || gate->inputs[0].name != OtherOf(*silu, j).name) continue;
      const GraphNode* split = with.TakeProducer(gate->inputs[0], "Split");
      if (split == nullptr || split->outputs.size() != 2 || !IsOverLastOfTwo(*split, 0)) continue;
      const ValueView &first = split->outputs[0], &second = split->outputs[1];
      if (first.name != gate->inputs[0].name || second.name != OtherOf(*product, i).name) continue;
      if (first.shape.size() != 2 || first.shape[1] < 1 || first.shape != second.shape) continue;
      match = with;
      return &split->inputs[0];
    }
  }
  return nullptr;
}

// The tokens, each of which is in k rows one after the other.
const ValueView* TakeRepeated(FusionMatch& match, const ValueView& rows, int64_t k, int64_t hidden) {
  const ValueView* expanded = TakeReshaped(match, rows, "Reshape", {-1, hidden});
  const ValueView* one = expanded == nullptr ? nullptr : TakeReshaped(match, *expanded, "Expand", {1, k, 1});
  const ValueView* tokens = one == nullptr ? nullptr : TakeReshaped(match, *one, "Unsqueeze", {1});
  return tokens != nullptr && tokens->shape.size() == 2 && tokens->shape[1] == hidden ? tokens : nullptr;
}

// Whether all shapes are those of experts of one size and of as many logits for each token.
bool Agree(const FusionGraph& graph, const ValueView& x, const Router& router, const Layer& up, const Layer& down) {
  const std::vector<int64_t>&first = up.weight.shape, &second = down.weight.shape;
  if (first[0] < 1 || first[1] < 2 || first[1] % 2 != 0 || first[2] < 1) return false;
  if (second != Ints{first[0], first[2], first[1] / 2} || router.k < 1 || router.k > first[0]) return false;
  const auto tokens = graph.Dims(x), logits = graph.Dims(router.logits);
  return tokens && logits && logits->size() == 2 && !(*tokens)[0].empty() && (*tokens)[0] == (*logits)[0] &&
         router.logits.shape[1] == first[0];
}

std::optional<FusedNode> MatchExperts(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const ValueView& total = BeforeCast(match, last.outputs[0]);
  const GraphNode* sum = match.TakeProducer(total, "ReduceSum");
  if (sum == nullptr || sum->view.attributes.Int("keepdims", 1) != 0 || !IsConstant(graph, *sum, 1, {1}))
    return std::nullopt;
  const GraphNode* reshape = match.TakeProducer(sum->inputs[0], "Reshape");
  const GraphNode* weighted = reshape == nullptr ? nullptr : match.TakeProducer(reshape->inputs[0], "Mul");
  for (size_t i = 0; weighted != nullptr && i < 2; ++i) {
    FusionMatch with = match;
    const auto down = TakeLayer(with, BeforeCast(with, weighted->inputs[i]));
    const ValueView* column = down ? TakeColumnOf(with, OtherOf(*weighted, i)) : nullptr;
    const ValueView* shares = column == nullptr ? nullptr : TakeReshaped(with, *column, "Reshape", {-1});
    const auto router = shares == nullptr ? std::nullopt : TakeRouter(with, *shares);
    const ValueView* both = router ? TakeGated(with, down->rows) : nullptr;
    const auto up = both == nullptr ? std::nullopt : TakeLayer(with, *both);
    if (!up || up->experts.name != down->experts.name) continue;
    const ValueView* chosen = TakeReshaped(with, up->experts, "Reshape", {-1});
    if (chosen == nullptr || chosen->name != router->best->outputs[1].name) continue;
    const int64_t hidden = up->weight.shape[2];
    const ValueView* x = TakeRepeated(with, up->rows, router->k, hidden);
    if (x == nullptr || x->dtype != last.outputs[0].dtype || !IsConstant(graph, *reshape, 1, {-1, router->k, hidden}) ||
        !Agree(graph, *x, *router, *up, *down))
      continue;
    FusedNode fused{.domain = "com.microsoft",
                    .type = "MoE",
                    .inputs = {*x, router->logits, up->weight, {}, down->weight},
                    .outputs = last.outputs,
                    .nodes = with.nodes()};
    fused.attributes.Set("k", router->k);
    fused.attributes.Set("normalize_routing_weights", int64_t{router->normalized});
    fused.attributes.Set("activation_type", std::string("swiglu"));
    fused.attributes.Set("swiglu_fusion", int64_t{2});  // the gate's columns come before those of the values
    fused.attributes.Set("activation_alpha", 1.0);
    fused.attributes.Set("activation_beta", 0.0);
    return fused;
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchExperts);

}  // namespace
}  // namespace npu::provider
