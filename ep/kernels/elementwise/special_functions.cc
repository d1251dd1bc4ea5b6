// Powers, logarithms and special functions that ONNX has not, as torch defines them.
#include <cmath>
#include <limits>
#include <numbers>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

// Giles' approximation ("Approximating the erfinv function", 2011), good to float, then Halley's method.
double InverseErf(double y) {
  if (!(y > -1 && y < 1)) return y == 1 || y == -1 ? std::copysign(HUGE_VAL, y) : std::nan("");
  double w = -std::log((1 - y) * (1 + y)), p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08;
    for (const double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                           -0.00417768164, 0.246640727, 1.50140941})
      p = c + p * w;
  } else {
    w = std::sqrt(w) - 3;
    p = -0.000200214257;
    for (const double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
                           1.00167406, 2.83297682})
      p = c + p * w;
  }
  double x = p * y;
  constexpr int kMaxSteps = 6;  // one or two, but for tails beyond float's
  for (int i = 0; i < kMaxSteps; ++i) {
    // Near 0 of erf, else of the tail, whose digits erf has lost.
    const double error = std::fabs(y) < 0.5 ? std::erf(x) - y
                         : y > 0            ? (1 - y) - std::erfc(x)
                                            : std::erfc(-x) - (1 + y);
    const double step = error / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
    x -= step / (1 + x * step);
    if (std::fabs(step) <= std::numeric_limits<double>::epsilon() * std::fabs(x)) break;
  }
  return x;
}

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
NPU_ONNX_KERNEL(AtenFunction<"Erfinv">([](auto x) { return InverseErf(x); }, {"self"}));
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
