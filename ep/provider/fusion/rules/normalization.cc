// RMSNormalization and LayerNormalization over the last axis, spelled out: x * scale / sqrt(mean(x²) + epsilon), and
// the same of x - mean(x) with a bias. A model of 16-bit floats may compute it in float32 between two Cast nodes; the
// kernel does, too.
#include "ep/provider/fusion/product.h"

namespace npu::provider {
namespace {

// value / sqrt(mean(value²) + epsilon), before the scale.
struct Normalised {
  ValueView value;
  double epsilon;
};

// The mean over the last axis, which is kept; returns what it is the mean of.
const ValueView* TakeMeanOfRows(FusionMatch& match, const ValueView& value) {
  const GraphNode* mean = match.TakeProducer(value, "ReduceMean");
  if (mean == nullptr || !mean->inputs[0].rank_known || mean->view.attributes.Int("keepdims", 1) != 1) return nullptr;
  std::vector<int64_t> axes = mean->view.attributes.Ints("axes");  // before operator set 18
  if (mean->inputs.size() > 1) axes = match.graph().Ints(mean->inputs[1]).value_or(std::vector<int64_t>());
  const auto rank = static_cast<int64_t>(mean->inputs[0].shape.size());
  if (axes.size() != 1 || (axes[0] != -1 && axes[0] != rank - 1)) return nullptr;
  return &mean->inputs[0];
}

// The root that divides: of Div(x, Sqrt(v)), or of Mul(x, r) with r = Reciprocal(Sqrt(v)) or Div(1, Sqrt(v)).
const GraphNode* TakeRoot(FusionMatch& match, const GraphNode& node, size_t input) {
  if (node.view.op_type == "Div") return input == 1 ? match.TakeProducer(node.inputs[1], "Sqrt") : nullptr;
  if (const GraphNode* reciprocal = match.TakeProducer(node.inputs[input], "Reciprocal"))
    return match.TakeProducer(reciprocal->inputs[0], "Sqrt");
  const GraphNode* quotient = match.TakeProducer(node.inputs[input], "Div");
  if (quotient == nullptr || ScalarBeside(match.graph(), quotient->inputs[0], quotient->inputs[1]) != 1.0)
    return nullptr;
  return match.TakeProducer(quotient->inputs[1], "Sqrt");
}

bool IsSquareOf(FusionMatch& match, const ValueView& square, const ValueView& value) {
  const GraphNode* node = match.graph().Producer(square);
  const auto product = node == nullptr ? std::nullopt : FactorsOf(match, *node);
  if (!product || product->constant != 1 || product->factors.size() != 2) return false;
  if (product->IsPowerOf(value, 2)) return true;
  // Old exporters compute x - mean(x) twice.
  const GraphNode* one = match.TakeProducer(value, "Sub");
  const GraphNode* other = match.TakeProducer(product->factors[0], "Sub");
  return one != nullptr && other != nullptr && product->IsPowerOf(product->factors[0], 2) &&
         one->inputs[0].name == other->inputs[0].name && one->inputs[1].name == other->inputs[1].name;
}

std::optional<Normalised> TakeNormalised(FusionMatch& match, const ValueView& value) {
  const GraphNode* node = match.graph().Producer(value);
  if (node == nullptr || (!match.Take(node, "Div") && !match.Take(node, "Mul"))) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch with = match;
    const ValueView& x = OtherOf(*node, i);
    const GraphNode* root = TakeRoot(with, *node, i);
    const auto sum = root == nullptr ? std::nullopt : TakeSumWithConstant(with, root->inputs[0]);
    const ValueView* squares = sum ? TakeMeanOfRows(with, sum->value) : nullptr;
    if (squares == nullptr || sum->constant < 0 || !IsSquareOf(with, *squares, x)) continue;
    match = with;
    return Normalised{x, sum->constant};
  }
  return std::nullopt;
}

// Whether `part` is one row that every row of x is multiplied with, or added to.
bool IsRowOf(const ValueView& part, const ValueView& x) {
  return part.rank_known && x.rank_known && part.shape.size() == 1 && !x.shape.empty() && part.shape[0] > 0 &&
         part.shape[0] == x.shape.back() && part.dtype == x.dtype;
}

// The same value before a Cast to float32.
bool TakeCastOf(FusionMatch& match, ValueView& x, DType dtype) {
  const GraphNode* cast = match.TakeProducer(x, "Cast");
  if (cast == nullptr || x.dtype != DType::kFloat32 || cast->inputs[0].dtype != dtype) return false;
  x = cast->inputs[0];
  return true;
}

struct Scaled {
  ValueView x, scale;
  double epsilon;
};

// scale * x / sqrt(mean(x²) + epsilon); `centred`: where x - mean(x) takes the place of x.
std::optional<Scaled> TakeScaled(FusionMatch& match, const ValueView& value, bool centred) {
  const GraphNode* product = match.TakeProducer(value, "Mul");
  for (size_t i = 0; product != nullptr && i < 2; ++i) {
    FusionMatch with = match;
    const ValueView& scale = product->inputs[i];
    const GraphNode* cast = with.TakeProducer(OtherOf(*product, i), "Cast");
    auto normal = TakeNormalised(with, cast != nullptr ? cast->inputs[0] : OtherOf(*product, i));
    if (!normal) continue;
    ValueView x = normal->value;
    if (centred) {
      const GraphNode* difference = with.TakeProducer(x, "Sub");
      const ValueView* mean_of = difference == nullptr ? nullptr : TakeMeanOfRows(with, difference->inputs[1]);
      if (mean_of == nullptr || mean_of->name != difference->inputs[0].name) continue;
      x = difference->inputs[0];
    }
    if (cast != nullptr && !TakeCastOf(with, x, cast->outputs[0].dtype)) continue;
    if (!IsRowOf(scale, x)) continue;
    match = with;
    return Scaled{x, scale, normal->epsilon};
  }
  return std::nullopt;
}

FusedNode NormOf(const char* type, int version, const Scaled& found, const FusionMatch& match, const GraphNode& last) {
  FusedNode fused{.type = type, .version = version, .inputs = {found.x, found.scale}, .outputs = last.outputs};
  fused.attributes.Set("axis", int64_t{-1});
  fused.attributes.Set("epsilon", found.epsilon);
  fused.nodes = match.nodes();
  return fused;
}

std::optional<FusedNode> MatchRmsNorm(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const auto found = TakeScaled(match, last.outputs[0], /*centred=*/false);
  if (!found) return std::nullopt;
  return NormOf("RMSNormalization", 23, *found, match, last);
}

std::optional<FusedNode> MatchLayerNorm(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  if (const auto plain = TakeScaled(match, last.outputs[0], /*centred=*/true))
    return NormOf("LayerNormalization", 17, *plain, match, last);
  if (match.Take(&last, "Add") == nullptr) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    FusionMatch with = match;
    const auto found = TakeScaled(with, last.inputs[i], /*centred=*/true);
    if (!found || !IsRowOf(OtherOf(last, i), found->x)) continue;
    FusedNode fused = NormOf("LayerNormalization", 17, *found, with, last);
    fused.inputs.push_back(OtherOf(last, i));
    return fused;
  }
  return std::nullopt;
}

NPU_FUSION_RULE(MatchRmsNorm);
NPU_FUSION_RULE(MatchLayerNorm);

}  // namespace
}  // namespace npu::provider
