#include "ep/provider/fusion/gelu_match.h"

#include <algorithm>
#include <numbers>

#include "ep/provider/fusion/product.h"

namespace npu::provider {
namespace {

constexpr double kCubic = 0.044715;
constexpr double kTanhScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;

// 1 + f(argument) among the factors; takes its nodes.
const GraphNode* TakeOnePlus(FusionMatch& match, const char* function, const ValueView& factor) {
  const auto sum = TakeSumWithConstant(match, factor);
  return sum && sum->constant == 1 ? match.TakeProducer(sum->value, function) : nullptr;
}

// x / sqrt(2)
bool IsErfArgument(FusionMatch& match, const ValueView& argument, const ValueView& x) {
  const Product product = FactorsOf(match, argument);
  return product.IsPowerOf(x, 1) && IsNumber(product.constant, 1 / std::numbers::sqrt2, x.dtype);
}

// 0.044715 x^power
bool IsCubicTerm(FusionMatch& match, const ValueView& term, const ValueView& x, size_t power) {
  const Product product = FactorsOf(match, term);
  return product.IsPowerOf(x, power) && IsNumber(product.constant, kCubic, x.dtype);
}

// sqrt(2 / pi) (x + 0.044715 x³), or sqrt(2 / pi) x (1 + 0.044715 x²)
bool IsTanhArgument(FusionMatch& match, const ValueView& argument, const ValueView& x) {
  const Product product = FactorsOf(match, argument);
  if (!IsNumber(product.constant, kTanhScale, x.dtype)) return false;
  if (product.factors.size() == 1) {
    const GraphNode* sum = match.TakeProducer(product.factors[0], "Add");
    for (size_t i = 0; sum != nullptr && i < 2; ++i) {
      FusionMatch with = match;
      if (sum->inputs[i].name != x.name || !IsCubicTerm(with, OtherOf(*sum, i), x, 3)) continue;
      match = with;
      return true;
    }
    return false;
  }
  for (size_t i = 0; product.factors.size() == 2 && i < 2; ++i) {
    FusionMatch with = match;
    const auto sum = TakeSumWithConstant(with, product.factors[1 - i]);
    if (product.factors[i].name != x.name || !sum || sum->constant != 1 || !IsCubicTerm(with, sum->value, x, 2))
      continue;
    match = with;
    return true;
  }
  return false;
}

}  // namespace

std::optional<GeluMatch> MatchSpelledGelu(FusionMatch& match, const GraphNode& last) {
  FusionMatch factors = match;
  const auto product = FactorsOf(factors, last);
  if (!product || product->factors.size() != 2 || product->constant != 0.5) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const ValueView &x = product->factors[i], &factor = product->factors[1 - i];
    for (const bool tanh : {false, true}) {
      FusionMatch with = factors;
      const GraphNode* function = TakeOnePlus(with, tanh ? "Tanh" : "Erf", factor);
      if (function == nullptr) continue;
      const auto is_argument = tanh ? &IsTanhArgument : &IsErfArgument;
      if (!is_argument(with, function->inputs[0], x)) continue;
      match = with;
      return GeluMatch{x, tanh};
    }
  }
  return std::nullopt;
}

}  // namespace npu::provider
