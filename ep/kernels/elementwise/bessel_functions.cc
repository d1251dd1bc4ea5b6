// Bessel functions of orders 0 and 1, as torch defines them. All are computed in double.
#include <cmath>
#include <limits>
#include <numbers>

#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// The modified function of the first kind and `order`, times e^-|x|: its power series, whose terms have one sign, and
// for large x the asymptotic one, whose smallest term is below e^-2x.
double ScaledI(int order, double x) {
  constexpr double kAsymptotic = 20;
  const double size = std::fabs(x);
  double value;
  if (size <= kAsymptotic) {
    const double quarter = size * size / 4;
    double term = order == 0 ? 1 : size / 2, sum = term;
    for (int k = 1; term > kEpsilon * sum; ++k) {
      term *= quarter / (k * (k + order));
      sum += term;
    }
    value = sum * std::exp(-size);
  } else {
    const double square = 4.0 * order * order;
    double term = 1, sum = 1;
    for (int k = 1; std::fabs(term) > kEpsilon && k < 2 * kAsymptotic; ++k) {
      term *= -(square - (2 * k - 1) * (2 * k - 1)) / (8 * k * size);
      sum += term;
    }
    value = sum / std::sqrt(2 * std::numbers::pi * size);
  }
  return order == 1 && x < 0 ? -value : value;
}

// Without the factor, which is infinite before the function is.
double I(int order, double x) {
  if (std::isinf(x)) return order == 1 ? x : HUGE_VAL;
  const double half = std::exp(std::fabs(x) / 2);
  return ScaledI(order, x) * half * half;
}

// The modified function of the second kind and `order`, times e^x: the integral of exp(x - x cosh t) cosh(order t) over
// t from 0 on, by the trapezoidal rule, which converges exponentially; for small x by the power series.
double ScaledK(int order, double x) {
  if (x != x || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return HUGE_VAL;
  if (std::isinf(x)) return 0;
  if (x <= 1) {
    // With h(k) = 1 + ... + 1/k: K0 is the sum of (h(k) - log(x/2) - gamma) (x/2)^2k / k!^2, and K1 = -K0'.
    const double quarter = x * x / 4, log = std::log(x / 2) + std::numbers::egamma;
    double factor = 1, harmonic = 0, zero = -log, one = 1 / x;
    for (int k = 1; k < 20; ++k) {
      factor *= quarter / (static_cast<double>(k) * k);
      harmonic += 1.0 / k;
      zero += (harmonic - log) * factor;
      one -= factor * (2 * k * (harmonic - log) - 1) / x;
    }
    return (order == 0 ? zero : one) * std::exp(x);
  }
  const double step = std::fmin(1.0 / 16, 0.7 / std::sqrt(x));  // of the bell's width, 1 / sqrt(x)
  double sum = 0.5;
  for (int k = 1;; ++k) {
    const double t = k * step, s = std::sinh(t / 2);
    const double value = std::exp(-2 * x * s * s) * (order == 0 ? 1 : std::cosh(t));
    sum += value;
    if (value < kEpsilon * sum) return sum * step;
  }
}

double SphericalJ0(double x) {
  if (std::isinf(x)) return 0;
  return std::fabs(x) < 1e-4 ? 1 - x * x / 6 : std::sin(x) / x;
}

NPU_ONNX_KERNEL(AtenFunction<"I0">([](auto x) { return I(0, x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"I1">([](auto x) { return I(1, x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"ScaledI0">([](auto x) { return ScaledI(0, x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"ScaledI1">([](auto x) { return ScaledI(1, x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"K0">([](auto x) { return ScaledK(0, x) * std::exp(-double{x}); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"K1">([](auto x) { return ScaledK(1, x) * std::exp(-double{x}); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"ScaledK0">([](auto x) { return ScaledK(0, x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"ScaledK1">([](auto x) { return ScaledK(1, x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"J0">([](auto x) { return ::j0(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"J1">([](auto x) { return ::j1(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Y0">([](auto x) { return ::y0(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Y1">([](auto x) { return ::y1(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"SphericalJ0">([](auto x) { return SphericalJ0(x); }, {"self"}));

}  // namespace
}  // namespace npu
