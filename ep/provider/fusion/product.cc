#include "ep/provider/fusion/product.h"

#include <algorithm>
#include <cmath>

namespace npu::provider {
namespace {

void Join(Product& product, const Product& more) {
  product.constant *= more.constant;
  product.factors.insert(product.factors.end(), more.factors.begin(), more.factors.end());
}

std::optional<Product> QuotientByConstant(FusionMatch& match, const GraphNode& node) {
  const auto divisor = ScalarBeside(match.graph(), node.inputs[1], node.inputs[0]);
  if (!divisor || *divisor == 0 || !match.Take(&node, "Div")) return std::nullopt;
  Product product = FactorsOf(match, node.inputs[0]);
  product.constant /= *divisor;
  return product;
}

std::optional<Product> SmallPower(FusionMatch& match, const GraphNode& node) {
  const auto exponent = ScalarBeside(match.graph(), node.inputs[1], node.inputs[0]);
  if (!exponent || (*exponent != 2 && *exponent != 3) || !match.Take(&node, "Pow")) return std::nullopt;
  Product product;
  product.factors.assign(static_cast<size_t>(*exponent), node.inputs[0]);
  return product;
}

Product ProductOfBoth(FusionMatch& match, const GraphNode& node) {
  Product product;
  for (size_t i = 0; i < 2; ++i) {
    if (const auto scalar = ScalarBeside(match.graph(), node.inputs[i], OtherOf(node, i))) {
      product.constant *= *scalar;
    } else {
      Join(product, FactorsOf(match, node.inputs[i]));
    }
  }
  return product;
}

}  // namespace

bool Product::IsPowerOf(const ValueView& value, size_t count) const {
  return factors.size() == count &&
         std::all_of(factors.begin(), factors.end(), [&](const ValueView& f) { return f.name == value.name; });
}

std::optional<double> ScalarBeside(const FusionGraph& graph, const ValueView& constant, const ValueView& other) {
  if (!constant.constant || (!constant.shape.empty() && !other.rank_known)) return std::nullopt;
  if (other.constant || constant.shape.size() > other.shape.size()) {
    if (!constant.shape.empty()) return std::nullopt;
  }
  return graph.Scalar(constant);
}

std::optional<Product> FactorsOf(FusionMatch& match, const GraphNode& node) {
  if (!node.domain.empty() || node.inputs.size() != 2) return std::nullopt;
  if (match.Take(&node, "Mul")) return ProductOfBoth(match, node);
  if (node.view.op_type == "Div") return QuotientByConstant(match, node);
  if (node.view.op_type == "Pow") return SmallPower(match, node);
  return std::nullopt;
}

Product FactorsOf(FusionMatch& match, const ValueView& value) {
  const GraphNode* node = match.graph().Producer(value);
  if (node != nullptr && match.graph().Readers(value) == 1) {
    if (auto product = FactorsOf(match, *node)) return *std::move(product);
  }
  return {.factors = {value}};
}

std::optional<ShiftedValue> TakeSumWithConstant(FusionMatch& match, const ValueView& value) {
  const GraphNode* node = match.graph().Producer(value);
  if (node == nullptr || node->inputs.size() != 2) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const auto constant = ScalarBeside(match.graph(), node->inputs[i], OtherOf(*node, i));
    if (constant && match.Take(node, "Add")) return ShiftedValue{*constant, OtherOf(*node, i)};
  }
  return std::nullopt;
}

bool IsNumber(double constant, double expected, DType dtype) {
  // Models round such numbers to a few digits, or to their type.
  const double tolerance = dtype == DType::kBFloat16 ? 0x1p-8 : dtype == DType::kFloat16 ? 0x1p-10 : 1e-5;
  return std::fabs(constant - expected) <= tolerance * std::fabs(expected);
}

}  // namespace npu::provider
