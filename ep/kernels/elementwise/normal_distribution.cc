// Functions of the normal distribution and of entropy, as torch defines them.
#include <cmath>
#include <limits>
#include <numbers>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/inverse_erf.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

// exp(x^2) erfc(x), in double: as it is written, and by the asymptotic series where erfc becomes tiny.
double ScaledErfc(double x) {
  constexpr double kAsymptotic = 10;
  if (!(x > kAsymptotic)) return x < -27 ? HUGE_VAL : std::exp(x * x) * std::erfc(x);
  double term = 1, sum = 1;
  for (int k = 1; std::fabs(term) > std::numeric_limits<double>::epsilon(); ++k) {
    term *= -(2 * k - 1) / (2 * x * x);
    sum += term;
  }
  return sum * std::numbers::inv_sqrtpi / x;
}

double LogNormalCdf(double x) {
  const double t = x / std::numbers::sqrt2;
  return x < -1 ? std::log(ScaledErfc(-t) / 2) - t * t : std::log1p(-std::erfc(t) / 2);
}

// The quantile of probability p.
double NormalQuantile(double p) {
  if (!(p >= 0 && p <= 1)) return std::numeric_limits<double>::quiet_NaN();
  return std::numbers::sqrt2 * InverseErf(2 * p - 1, 2 * p, 2 * (1 - p));
}

template <class C>
C Entropy(C x) {
  return x > 0 ? -x * real::Log(x) : x == 0 ? C{0} : x != x ? x : -std::numeric_limits<C>::infinity();
}

// 0 where x is, whatever the logarithm, but for NaN.
template <class C>
C XLog1pY(C x, C y) {
  return x == 0 && y == y ? C{0} : x * real::Log1p(y);
}

NPU_ONNX_KERNEL(AtenFunction<"ScaledErfc">([](auto x) { return ScaledErfc(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"LogNormalCdf">([](auto x) { return LogNormalCdf(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"NormalQuantile">([](auto p) { return NormalQuantile(p); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Entropy">([](auto x) { return Entropy(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"XLog1pY">([](auto x, auto y) { return XLog1pY(x, y); }, {"self", "other"}));

}  // namespace
}  // namespace npu
