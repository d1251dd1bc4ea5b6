// softmax(scale * Q Kᵀ + mask) V of [B, N, S, D], as torch.onnx writes it, is Attention. The scale may be a factor of
// the scores, of Q or of K. Weights that are not numbers are replaced by 0, which torch means for rows of which the
// mask hides all: Attention returns 0 for them, too. (For operands that are not numbers it returns NaN, as torch does.)
// Without this replacement the results of such rows are NaN, so that a group with a mask is none, unless the mask is
// finite: the results are then means.
//
// Queries that share keys and values come with copies of these, a head for each query: an Attention takes the heads
// that were copied, whether it was spelled out or is a node of the model.
#include <cmath>

#include "ep/provider/fusion/product.h"
#include "ep/provider/fusion/shape_values.h"

namespace npu::provider {
namespace {

using Dims = std::vector<std::string>;
constexpr int64_t kMaxHeadSize = 256;  // larger ones are no attention that models have

// Of rank 4, all of whose dimensions are known or have names.
std::optional<Dims> DimsOfHeads(const FusionGraph& graph, const ValueView& value) {
  auto dims = graph.Dims(value);
  if (!dims || dims->size() != 4) return std::nullopt;
  for (const std::string& dim : *dims)
    if (dim.empty()) return std::nullopt;
  return dims;
}

// K as a node has it: `perm` names, for each axis of [B, N, S, D], that of the value.
struct Keys {
  const ValueView* value;
  Dims dims;  // of K
  std::vector<int64_t> perm = {0, 1, 2, 3};

  bool plain() const { return perm == std::vector<int64_t>{0, 1, 2, 3}; }
};

// K, of which `value` is the transposed: by a Transpose of four axes, which onnxruntime may have joined with another
// one, or by one in three dimensions between two Reshape.
std::optional<Keys> TakeTransposed(FusionMatch& match, const ValueView& value) {
  const FusionGraph& graph = match.graph();
  if (const GraphNode* transpose = match.TakeProducer(value, "Transpose")) {
    const auto turned = DimsOfHeads(graph, value);
    const std::vector<int64_t> perm = transpose->view.attributes.Ints("perm");
    if (!turned || perm.size() != 4) return std::nullopt;
    return Keys{&transpose->inputs[0],
                {(*turned)[0], (*turned)[1], (*turned)[3], (*turned)[2]},
                {perm[0], perm[1], perm[3], perm[2]}};
  }
  const GraphNode* outer = match.TakeProducer(value, "Reshape");
  const GraphNode* transpose = outer == nullptr ? nullptr : match.TakeProducer(outer->inputs[0], "Transpose");
  const GraphNode* inner = transpose == nullptr ? nullptr : match.TakeProducer(transpose->inputs[0], "Reshape");
  if (inner == nullptr || transpose->view.attributes.Ints("perm") != std::vector<int64_t>{0, 2, 1}) return std::nullopt;
  const auto k = DimsOfHeads(graph, inner->inputs[0]);
  const auto matrices = TakeShape(match, inner->inputs[1]), turned = TakeShape(match, outer->inputs[1]);
  if (!k || !matrices || !turned || matrices->size() != 3 || turned->size() != 4) return std::nullopt;
  // The first dimension of the matrices follows from the others.
  if ((*matrices)[1] != (*k)[2] || (*matrices)[2] != (*k)[3]) return std::nullopt;
  if (*turned != Dims{(*k)[0], (*k)[1], (*k)[3], (*k)[2]}) return std::nullopt;
  return Keys{&inner->inputs[0], *k};
}

// Softmax over the last axis; `replaced`: whether what is not a number is replaced by 0.
const GraphNode* TakeSoftmax(FusionMatch& match, const ValueView& value, bool& replaced) {
  const ValueView* weights = &value;
  if (const GraphNode* where = match.TakeProducer(value, "Where")) {
    const GraphNode* test = match.TakeProducer(where->inputs[0], "IsNaN");
    if (test == nullptr || match.graph().Scalar(where->inputs[1]) != 0.0 || !where->inputs[1].shape.empty() ||
        test->inputs[0].name != where->inputs[2].name)
      return nullptr;
    weights = &where->inputs[2];
    replaced = true;
  }
  const GraphNode* softmax = match.TakeProducer(*weights, "Softmax");
  if (softmax == nullptr || softmax->inputs[0].shape.size() != 4) return nullptr;
  const int64_t axis = softmax->view.attributes.Int("axis", softmax->view.since_version >= 13 ? -1 : 1);
  return axis == -1 || axis == 3 ? softmax : nullptr;
}

// What `value`, [B, Nkv * G, T, D], repeats: G times each head of [B, Nkv, T, D], by Unsqueeze, Expand and Reshape. The
// shapes that the last two are given may be read elsewhere, too, and are not taken.
const ValueView* TakeRepeatedHeads(FusionMatch& match, const ValueView& value) {
  const FusionGraph& graph = match.graph();
  const auto all = DimsOfHeads(graph, value);
  const GraphNode* reshape = match.TakeProducer(value, "Reshape");
  const GraphNode* expand = reshape == nullptr ? nullptr : match.TakeProducer(reshape->inputs[0], "Expand");
  const GraphNode* unsqueeze = expand == nullptr ? nullptr : match.TakeProducer(expand->inputs[0], "Unsqueeze");
  if (unsqueeze == nullptr) return nullptr;
  const ValueView &x = unsqueeze->inputs[0], &repeated = reshape->inputs[0];
  const auto one = DimsOfHeads(graph, x), single = graph.Dims(expand->inputs[0]), copies = graph.Dims(repeated);
  if (!all || !one || !single || *single != Dims{(*one)[0], (*one)[1], "1", (*one)[2], (*one)[3]}) return nullptr;
  if (!copies || copies->size() != 5) return nullptr;
  const int64_t heads = x.shape[1], times = repeated.shape[2];
  if (heads < 1 || times < 1 || *copies != Dims{(*one)[0], (*one)[1], std::to_string(times), (*one)[2], (*one)[3]})
    return nullptr;
  if (*all != Dims{(*one)[0], std::to_string(heads * times), (*one)[2], (*one)[3]}) return nullptr;
  return &x;
}

// Takes what two operands repeat in place of them; false if one repeats nothing, or not as often as the other.
bool TakeSharedHeads(FusionMatch& match, ValueView& keys, ValueView& values) {
  const ValueView *k = TakeRepeatedHeads(match, keys), *v = TakeRepeatedHeads(match, values);
  if (k == nullptr || v == nullptr || k->shape[1] != v->shape[1]) return false;
  keys = *k;
  values = *v;
  return true;
}

// The one factor of a product, `scale` times which it is; else the value itself.
ValueView TakeScaledValue(FusionMatch& match, const ValueView& value, double& scale) {
  FusionMatch with = match;
  const Product product = FactorsOf(with, value);
  if (product.factors.size() != 1) return value;
  match = with;
  scale *= product.constant;
  return product.factors[0];
}

// Whether the mask has a column for each key, and otherwise broadcasts to the scores.
bool FitsScores(const FusionGraph& graph, const ValueView& mask, const Dims& scores) {
  const auto dims = graph.Dims(mask);
  if (!dims || dims->size() < 2 || dims->size() > 4 || dims->back() != scores.back()) return false;
  for (size_t d = 0; d + 1 < dims->size(); ++d) {
    const std::string& dim = (*dims)[d];
    if (dim != "1" && (dim.empty() || dim != scores[4 - dims->size() + d])) return false;
  }
  return true;
}

// Whether the mask is made of finite constants, one where a value of bool is true and one where it is not.
bool IsFiniteMask(const FusionGraph& graph, const ValueView& mask) {
  const GraphNode* node = graph.Producer(mask);
  if (node == nullptr) return graph.of_group();
  const auto is = [&](const char* type) { return node->domain.empty() && node->view.op_type == type; };
  const auto finite = [&](const ValueView& value) {
    const auto scalar = graph.Scalar(value);
    return scalar && std::isfinite(*scalar);
  };
  if (is("Where")) return finite(node->inputs[1]) && finite(node->inputs[2]);
  if (!is("Mul")) return false;
  for (size_t i = 0; i < 2; ++i) {
    const GraphNode* cast = graph.Producer(OtherOf(*node, i));
    if (finite(node->inputs[i]) && cast != nullptr && cast->view.op_type == "Cast" &&
        cast->inputs[0].dtype == DType::kBool)
      return true;
  }
  return false;
}

// scale * Q Kᵀ is `value`, the weights are multiplied with `v`. The number of values needs no name: it is that of the
// weights' columns.
std::optional<FusedNode> TakeProduct(FusionMatch& match, const ValueView& value, const ValueView& v,
                                     const ValueView* mask, bool shared) {
  const FusionGraph& graph = match.graph();
  double scale = 1;
  const GraphNode* scores = match.TakeProducer(TakeScaledValue(match, value, scale), "MatMul");
  if (scores == nullptr) return std::nullopt;
  const ValueView q = TakeScaledValue(match, scores->inputs[0], scale);
  const ValueView transposed = TakeScaledValue(match, scores->inputs[1], scale);
  const auto k = TakeTransposed(match, transposed);
  const auto q_dims = DimsOfHeads(graph, q), v_dims = DimsOfHeads(graph, v);
  if (!k || !q_dims || !v_dims || q.shape[3] < 1 || q.shape[3] > kMaxHeadSize || v.shape[3] < 1 ||
      v.shape[3] > kMaxHeadSize || q.shape[1] < 1)
    return std::nullopt;
  // MatMul may broadcast batches and heads, Attention does not.
  const Dims expected_k{(*q_dims)[0], (*q_dims)[1], k->dims[2], (*q_dims)[3]};
  const Dims expected_v{(*q_dims)[0], (*q_dims)[1], (*v_dims)[2], (*v_dims)[3]};
  if (k->dims != expected_k || *v_dims != expected_v) return std::nullopt;
  if (mask != nullptr && !FitsScores(graph, *mask, {(*q_dims)[0], (*q_dims)[1], (*q_dims)[2], k->dims[2]}))
    return std::nullopt;
  FusedNode fused{.type = "Attention", .version = 23, .inputs = {q, *k->value, v}};
  if (shared && (!k->plain() || !TakeSharedHeads(match, fused.inputs[1], fused.inputs[2]))) return std::nullopt;
  if (!k->plain()) {
    fused.domain = "npu.fused";
    fused.version = 1;
    fused.attributes.Set("key_perm", k->perm);
  }
  if (mask != nullptr) fused.inputs.push_back(*mask);
  fused.attributes.Set("scale", scale);
  return fused;
}

std::optional<FusedNode> MatchProducts(const FusionGraph& graph, const GraphNode& last, bool shared) {
  FusionMatch match(graph);
  if (match.Take(&last, "MatMul") == nullptr) return std::nullopt;
  bool replaced = false;
  const GraphNode* softmax = TakeSoftmax(match, last.inputs[0], replaced);
  if (softmax == nullptr) return std::nullopt;
  const auto finish = [&](FusionMatch with, const ValueView& scores, const ValueView* mask) {
    auto fused = TakeProduct(with, scores, last.inputs[1], mask, shared);
    if (fused) {
      fused->outputs = last.outputs;
      fused->nodes = with.nodes();
    }
    return fused;
  };
  if (auto fused = finish(match, softmax->inputs[0], nullptr)) return fused;
  const GraphNode* sum = match.TakeProducer(softmax->inputs[0], "Add");
  for (size_t i = 0; sum != nullptr && i < 2; ++i) {
    const ValueView& mask = OtherOf(*sum, i);
    if (!replaced && !IsFiniteMask(graph, mask)) continue;
    if (auto fused = finish(match, sum->inputs[i], &mask)) return fused;
  }
  return std::nullopt;
}

std::optional<FusedNode> MatchAttention(const FusionGraph& graph, const GraphNode& last) {
  return MatchProducts(graph, last, /*shared=*/false);
}

// A group of its own: where something else reads the copies, the products are still fused.
std::optional<FusedNode> MatchSharedHeads(const FusionGraph& graph, const GraphNode& last) {
  if (last.view.op_type != "Attention") return MatchProducts(graph, last, /*shared=*/true);
  FusionMatch match(graph);
  // Heads of a cache would have to be copied as often, and results beside the first have all heads.
  if (match.Take(&last, "Attention") == nullptr || last.inputs.size() < 3 || last.outputs.size() != 1)
    return std::nullopt;
  for (size_t i = 4; i < last.inputs.size(); ++i)
    if (last.inputs[i].info != nullptr) return std::nullopt;
  FusedNode fused{.type = "Attention",
                  .version = last.view.since_version,
                  .inputs = last.inputs,
                  .outputs = last.outputs,
                  .attributes = last.view.attributes};
  if (!TakeSharedHeads(match, fused.inputs[1], fused.inputs[2])) return std::nullopt;
  fused.nodes = match.nodes();
  return fused;
}

NPU_FUSION_RULE(MatchAttention);
NPU_FUSION_RULE(MatchSharedHeads);

}  // namespace
}  // namespace npu::provider
