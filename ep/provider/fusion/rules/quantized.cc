// DequantizeLinear of every operand, an operator of floats, QuantizeLinear of its result: the operator on 8-bit
// integers. Products sum integers; what only moves elements, moves integers. A product whose result stays a float needs
// no QuantizeLinear.
#include <algorithm>
#include <cmath>

#include "ep/kernels/quantization/bytes.h"
#include "ep/provider/fusion/rule.h"

namespace npu::provider {
namespace {

constexpr const char* kMicrosoft = "com.microsoft";

// Integers and what they mean.
struct Quantized {
  ValueView integers, scale, point;
};

bool IsOneFloat(const ValueView& scale) { return scale.dtype == DType::kFloat32 && scale.StaticElements() == 1; }
bool HasPoint(const GraphNode& node) { return node.inputs.size() == 3 && node.inputs[2].info != nullptr; }
bool InBlocks(const GraphNode& node) { return node.view.attributes.Int("block_size", 0) != 0; }

// 8-bit integers with one scale and one zero point.
std::optional<Quantized> TakeOperand(FusionMatch& match, const ValueView& value) {
  const GraphNode* node = match.TakeProducer(value, "DequantizeLinear");
  if (node == nullptr || !HasPoint(*node) || InBlocks(*node)) return std::nullopt;
  if (!kByteTypes.Contains(node->inputs[0].dtype) || !IsOneFloat(node->inputs[1])) return std::nullopt;
  return Quantized{node->inputs[0], node->inputs[1], node->inputs[2]};
}

// The same, or one scale for each position of `axis` of a weight, which has so many axes.
std::optional<Quantized> TakeWeight(FusionMatch& match, const ValueView& value, int64_t axis) {
  FusionMatch with = match;
  if (auto operand = TakeOperand(with, value)) {
    match = with;
    return operand;
  }
  const GraphNode* node = match.TakeProducer(value, "DequantizeLinear");
  if (node == nullptr || !HasPoint(*node) || InBlocks(*node)) return std::nullopt;
  const ValueView& weight = node->inputs[0];
  if (!kByteTypes.Contains(weight.dtype) || !weight.rank_known || node->inputs[1].dtype != DType::kFloat32 ||
      node->inputs[1].shape.size() != 1)
    return std::nullopt;
  const auto rank = static_cast<int64_t>(weight.shape.size());
  const int64_t given = node->view.attributes.Int("axis", 1);
  if ((given < 0 ? given + rank : given) != axis) return std::nullopt;
  return Quantized{weight, node->inputs[1], node->inputs[2]};
}

// The int32 of a bias, if its scales are those of the sums: a's times b's.
std::optional<ValueView> TakeBias(FusionMatch& match, const ValueView& value, const Quantized& a, const Quantized& b) {
  const GraphNode* node = match.TakeProducer(value, "DequantizeLinear");
  if (node == nullptr || InBlocks(*node) || node->inputs[0].dtype != DType::kInt32) return std::nullopt;
  const FusionGraph& graph = match.graph();
  if (HasPoint(*node)) {
    const auto points = graph.Ints(node->inputs[2]);
    if (!points || std::any_of(points->begin(), points->end(), [](int64_t p) { return p != 0; })) return std::nullopt;
  }
  const auto of_bias = graph.Floats(node->inputs[1]), of_b = graph.Floats(b.scale);
  const auto of_a = graph.Scalar(a.scale);
  if (!of_bias || !of_b || !of_a || of_bias->empty() || of_b->empty()) return std::nullopt;
  if (of_bias->size() != of_b->size() && of_bias->size() != 1 && of_b->size() != 1) return std::nullopt;
  for (size_t i = 0; i < std::max(of_bias->size(), of_b->size()); ++i) {
    const double wanted = *of_a * (*of_b)[i % of_b->size()], given = (*of_bias)[i % of_bias->size()];
    if (!(std::fabs(given - wanted) <= 1e-5 * std::fabs(wanted))) return std::nullopt;  // a product in float32
  }
  return node->inputs[0];
}

void Append(FusedNode& fused, const Quantized& operand) {
  fused.inputs.insert(fused.inputs.end(), {operand.integers, operand.scale, operand.point});
}

// A node between its operands and its result; `result` has no integers, and no scale where it stays a float.
struct Between {
  const GraphNode& node;
  Quantized result;

  bool to_floats() const { return result.scale.info == nullptr; }
  int64_t Int(const char* name, int64_t fallback) const { return node.view.attributes.Int(name, fallback); }
  bool Has(size_t input) const { return node.inputs.size() > input && node.inputs[input].info != nullptr; }
  void AppendResult(FusedNode& fused) const { fused.inputs.insert(fused.inputs.end(), {result.scale, result.point}); }
};

using Maybe = std::optional<FusedNode>;

Maybe FuseConv(FusionMatch& match, const Between& b) {
  const auto x = TakeOperand(match, b.node.inputs[0]);
  const auto w = TakeWeight(match, b.node.inputs[1], 0);
  if (!x || !w || b.to_floats()) return std::nullopt;
  FusedNode fused{.type = "QLinearConv", .version = 10};
  Append(fused, *x);
  Append(fused, *w);
  b.AppendResult(fused);
  if (b.Has(2)) {
    const auto bias = TakeBias(match, b.node.inputs[2], *x, *w);
    if (!bias) return std::nullopt;
    fused.inputs.push_back(*bias);
  }
  fused.attributes = b.node.view.attributes;
  return fused;
}

Maybe FuseMatMul(FusionMatch& match, const Between& b) {
  const auto left = TakeOperand(match, b.node.inputs[0]);
  // Of matrices in a batch, columns have no axis of scales that both operators know.
  const auto right = TakeWeight(match, b.node.inputs[1], 1);
  if (!left || !right) return std::nullopt;
  if (!IsOneFloat(right->scale) && right->integers.shape.size() != 2) return std::nullopt;
  if (b.to_floats()) {
    FusedNode fused{.domain = kMicrosoft, .type = "MatMulIntegerToFloat"};
    fused.inputs = {left->integers, right->integers, left->scale, right->scale, left->point, right->point};
    return fused;
  }
  FusedNode fused{.type = "QLinearMatMul", .version = 10};
  Append(fused, *left);
  Append(fused, *right);
  b.AppendResult(fused);
  return fused;
}

Maybe FuseGemm(FusionMatch& match, const Between& b) {
  const double alpha = b.node.view.attributes.Float("alpha", 1.0), beta = b.node.view.attributes.Float("beta", 1.0);
  const auto left = TakeOperand(match, b.node.inputs[0]);
  const auto right = TakeWeight(match, b.node.inputs[1], b.Int("transB", 0) != 0 ? 0 : 1);
  if (!left || !right || (b.Has(2) && (alpha != 1 || beta != 1))) return std::nullopt;
  FusedNode fused{.domain = kMicrosoft, .type = "QGemm"};
  Append(fused, *left);
  Append(fused, *right);
  fused.inputs.emplace_back();  // without a bias
  if (b.Has(2)) {
    const auto bias = TakeBias(match, b.node.inputs[2], *left, *right);
    if (!bias) return std::nullopt;
    fused.inputs.back() = *bias;
  }
  if (!b.to_floats()) b.AppendResult(fused);
  fused.attributes.Set("alpha", alpha);
  for (const char* name : {"transA", "transB"}) fused.attributes.Set(name, b.Int(name, 0));
  return fused;
}

// Operators of com.microsoft whose inputs are all operands and then the result.
Maybe FuseOperands(FusionMatch& match, const Between& b, const char* type) {
  if (b.to_floats()) return std::nullopt;
  FusedNode fused{.domain = kMicrosoft, .type = type};
  for (const ValueView& input : b.node.inputs) {
    const auto operand = TakeOperand(match, input);
    if (!operand || operand->integers.dtype != b.result.point.dtype) return std::nullopt;
    Append(fused, *operand);
  }
  b.AppendResult(fused);
  fused.attributes = b.node.view.attributes;
  return fused;
}

Maybe FuseConcat(FusionMatch& match, const Between& b) {
  if (b.to_floats()) return std::nullopt;
  FusedNode fused{.domain = kMicrosoft, .type = "QLinearConcat"};
  b.AppendResult(fused);
  for (const ValueView& input : b.node.inputs) {
    const auto operand = TakeOperand(match, input);
    if (!operand || operand->integers.dtype != b.result.point.dtype) return std::nullopt;
    Append(fused, *operand);
  }
  fused.attributes = b.node.view.attributes;
  return fused;
}

Maybe FuseSoftmax(FusionMatch& match, const Between& b) {
  Maybe fused = FuseOperands(match, b, "QLinearSoftmax");
  const int64_t version = b.node.view.since_version;
  if (fused) {
    fused->attributes.Set("axis", b.Int("axis", version < 13 ? 1 : -1));
    fused->attributes.Set("opset", version);
  }
  return fused;
}

bool SameConstant(const FusionGraph& graph, const ValueView& a, const ValueView& b) {
  return a.dtype == b.dtype && (a.name == b.name || (graph.Scalar(a) && graph.Scalar(a) == graph.Scalar(b)));
}

// What hands elements on: the same operator on integers that mean the same before and after it.
Maybe FuseMovement(FusionMatch& match, const Between& b) {
  const auto x = TakeOperand(match, b.node.inputs[0]);
  const FusionGraph& graph = match.graph();
  if (!x || b.to_floats() || b.node.outputs.size() != 1 || !SameConstant(graph, x->scale, b.result.scale) ||
      !SameConstant(graph, x->point, b.result.point))
    return std::nullopt;
  FusedNode fused{.type = b.node.view.op_type, .version = b.node.view.since_version, .inputs = b.node.inputs};
  fused.inputs[0] = x->integers;
  fused.attributes = b.node.view.attributes;
  return fused;
}

Maybe Fuse(FusionMatch& match, const Between& b) {
  const std::string& type = b.node.view.op_type;
  if (type == "Conv") return FuseConv(match, b);
  if (type == "MatMul") return FuseMatMul(match, b);
  if (type == "Gemm") return FuseGemm(match, b);
  if (type == "Concat") return FuseConcat(match, b);
  if (type == "Softmax") return FuseSoftmax(match, b);
  for (const char* each : {"Add", "Mul", "Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool"})
    if (type == each) return FuseOperands(match, b, (std::string("QLinear") + each).c_str());
  for (const char* each : {"MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"})
    if (type == each) return FuseMovement(match, b);
  return std::nullopt;
}

Maybe MatchQuantized(const FusionGraph& graph, const GraphNode& last) {
  FusionMatch match(graph);
  const GraphNode* node = &last;
  Quantized result;
  if (match.Take(&last, "QuantizeLinear") != nullptr) {
    if (!HasPoint(last) || InBlocks(last) || !IsOneFloat(last.inputs[1]) || !kByteTypes.Contains(last.inputs[2].dtype))
      return std::nullopt;
    result = {{}, last.inputs[1], last.inputs[2]};
    node = graph.Producer(last.inputs[0]);
  }
  if (node == nullptr || match.Take(node, node->view.op_type) == nullptr || node->inputs.empty()) return std::nullopt;
  Maybe fused = Fuse(match, {*node, result});
  if (!fused) return std::nullopt;
  fused->outputs = last.outputs;
  fused->nodes = match.nodes();
  return fused;
}

NPU_FUSION_RULE(MatchQuantized);

}  // namespace
}  // namespace npu::provider
