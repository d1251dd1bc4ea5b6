// Powers, logarithms and special functions that ONNX has not, as torch defines them.
#include <cmath>
#include <numbers>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/inverse_erf.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

// In double, as the tails of erf and the poles of lgamma need; the C library's lgamma writes a global.
double LogGamma(double x) {
  int sign;
  return ::lgamma_r(x, &sign);
}

template <class C>
C LogAddExp(C a, C b) {
  return a == b ? a + std::numbers::ln2_v<C> : std::fmax(a, b) + real::Log1pExpOfMinusAbs(a - b);
}

template <class C>
C LogAddExp2(C a, C b) {
  return a == b ? a + 1 : std::fmax(a, b) + std::log2(1 + std::exp2(-std::fabs(a - b)));
}

// The derivative of lgamma, in double: the recurrence up to where the asymptotic series has converged, and the
// reflection for negative x, whose poles are NaN. At 0 it is infinite, of the sign of -x.
double Digamma(double x) {
  if (x == 0) return std::copysign(HUGE_VAL, -x);
  if (x < 0) {
    double whole;
    const double fraction = std::modf(x, &whole);
    if (fraction == 0) return std::nan("");
    return Digamma(1 - x) - std::numbers::pi / std::tan(std::numbers::pi * fraction);
  }
  double sum = 0;
  for (; x < 10; ++x) sum -= 1 / x;
  // Bernoulli numbers B(2k) / (2k), from the last term to the first.
  constexpr double kTerms[] = {1.0 / 12, -691.0 / 32760, 1.0 / 132, -1.0 / 240, 1.0 / 252, -1.0 / 120, 1.0 / 12};
  const double square = 1 / (x * x);
  double series = 0;
  for (const double term : kTerms) series = (series + term) * square;
  return sum + std::log(x) - 0.5 / x - series;
}

// 0 where x is, whatever the logarithm, but for NaN.
template <class C>
C XLogY(C x, C y) {
  return x == 0 && y == y ? C{0} : x * real::Log(y);
}

NPU_ONNX_KERNEL(AtenFunction<"Exp2">([](auto x) { return std::exp2(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Expm1">([](auto x) { return real::Expm1(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Log10">([](auto x) { return std::log10(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Log1p">([](auto x) { return real::Log1p(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Log2">([](auto x) { return std::log2(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Erfc">([](auto x) { return std::erfc(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Erfinv">([](auto y) { return InverseErf(y, 1 + double{y}, 1 - double{y}); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"LogGamma">([](auto x) { return LogGamma(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"LogAddExp">([](auto a, auto b) { return LogAddExp(a, b); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"LogAddExp2">([](auto a, auto b) { return LogAddExp2(a, b); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"Digamma">([](auto x) { return Digamma(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"XLogY">([](auto x, auto y) { return XLogY(x, y); }, {"self", "other"}));

// log(x / (1 - x)) of x between two bounds; the gradient is `outside` beyond them.
NPU_ONNX_KERNEL(AtenFunction<"Logit">(
    [](auto x, auto low, auto high) {
      const auto p = x < low ? low : x > high ? high : x;
      return real::Log(p / (1 - p));
    },
    {"self"}, {FloatAttribute("low"), FloatAttribute("high")}));
NPU_ONNX_KERNEL(AtenFunction<"LogitGrad">(
    [](auto g, auto x, auto low, auto high, auto outside) { return x < low || x > high ? outside : g / (x * (1 - x)); },
    {"grad", "self"}, {FloatAttribute("low"), FloatAttribute("high"), FloatAttribute("outside")}));

}  // namespace
}  // namespace npu
