// Formulas as models spell them: products as trees of Mul, Div and Pow in any order, sums with a constant.
#pragma once

#include <optional>
#include <vector>

#include "ep/provider/fusion/rule.h"

namespace npu::provider {

// constant * factors[0] * factors[1] * …
struct Product {
  double constant = 1;
  std::vector<ValueView> factors = {};

  // Whether the factors are `count` times `value`.
  bool IsPowerOf(const ValueView& value, size_t count) const;
};

// The factors of `value`; takes the nodes that multiply them. A value that is read elsewhere, too, is a factor itself.
Product FactorsOf(FusionMatch& match, const ValueView& value);
// Those of a node, whoever reads its result; none if it is no product.
std::optional<Product> FactorsOf(FusionMatch& match, const GraphNode& node);

struct ShiftedValue {
  double constant;
  ValueView value;
};
// The operands of a sum of a value and a constant; takes the node.
std::optional<ShiftedValue> TakeSumWithConstant(FusionMatch& match, const ValueView& value);

// Whether a constant of a model is this number, as a model of 16-bit floats stores it, too.
bool IsNumber(double constant, double expected, DType dtype);

// A constant with one element that does not change the shape of what it is added to or multiplied with.
std::optional<double> ScalarBeside(const FusionGraph& graph, const ValueView& constant, const ValueView& other);

}  // namespace npu::provider
