// Functions of the gamma family that ONNX has not, as torch defines them. All are computed in double.
#include <cmath>
#include <limits>
#include <numbers>

#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kMaxTerms = 20000;  // the slowest of the series below needs 9 * sqrt(kUniform)

// From this `a` on, and near x = a, the incomplete gamma functions are computed by their uniform expansion.
constexpr double kUniform = 1e4, kNear = 0.1;

// log(1 + d) - d without cancellation near 0.
double Log1pLess(double d) {
  if (std::fabs(d) > 0.1) return std::log1p(d) - d;
  double power = d, sum = 0;
  for (int k = 2; k < 20; ++k) {
    power *= -d;
    sum += power / k;
  }
  return sum;
}

// log(gamma(1 + a)), whose argument would round a small `a` away.
double LogGammaOfNext(double a) {
  if (a < 1e-5) return a * (std::numbers::pi * std::numbers::pi / 12 * a - std::numbers::egamma);
  int sign;
  return ::lgamma_r(1 + a, &sign);
}

// x^a e^-x / gamma(1 + a)
double Front(double a, double x) {
  if (a < 100) return std::exp(a * std::log(x) - x - LogGammaOfNext(a));
  const double square = a * a;
  const double stirling = (1 - (1 - 2 / (7 * square)) / (30 * square)) / (12 * a);
  return std::exp(a * Log1pLess((x - a) / a) - stirling) / std::sqrt(2 * std::numbers::pi * a);
}

// The lower function by its power series, for x up to about a.
double LowerSeries(double a, double x) {
  double term = 1, sum = 1;
  for (int k = 1; k < kMaxTerms && term > kEpsilon * sum; ++k) {
    term *= x / (a + k);
    sum += term;
  }
  return Front(a, x) * sum;
}

// The upper function by its series in x, for x up to about 1, where 1 - lower would cancel.
double UpperSeries(double a, double x) {
  double term = 1, sum = 0;
  for (int k = 1; k < kMaxTerms && std::fabs(term) > kEpsilon * std::fabs(sum); ++k) {
    term *= -x / k;
    sum += term / (a + k);
  }
  const double log = a * std::log(x) - LogGammaOfNext(a);
  return -std::expm1(log) - std::exp(log) * a * sum;
}

// The upper function by its continued fraction (modified Lentz), for x above a.
double UpperFraction(double a, double x) {
  constexpr double kTiny = 1e-300;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, value = d;
  for (int k = 1; k < kMaxTerms; ++k) {
    const double numerator = k * (a - k);
    b += 2;
    d = numerator * d + b;
    if (std::fabs(d) < kTiny) d = kTiny;
    c = b + numerator / c;
    if (std::fabs(c) < kTiny) c = kTiny;
    d = 1 / d;
    const double step = c * d;
    value *= step;
    if (std::fabs(step - 1) < kEpsilon) break;
  }
  return Front(a, x) * a * value;
}

double Polynomial(double x, std::initializer_list<double> from_highest) {
  double sum = 0;
  for (const double c : from_highest) sum = sum * x + c;
  return sum;
}

// Temme's expansion (DLMF 8.12) of the upper function, or of the lower one, for large a.
double Uniform(double a, double x, bool upper) {
  const double d = (x - a) / a, half_square = -Log1pLess(d);  // eta^2 / 2
  const double eta = std::copysign(std::sqrt(2 * half_square), d);
  const double c0 =
      Polynomial(eta, {8.296711340953087e-07, -1.85406221071516e-06, -2.185448510679992e-06, 3.919263178522438e-05,
                       -139.0 / 777600, 1.0 / 2835, 1.0 / 864, -2.0 / 135, 1.0 / 12, -1.0 / 3});
  const double c1 =
      Polynomial(eta, {-4.018775720164609e-07, 1.0 / 4860, -77.0 / 77760, 1.0 / 378, -1.0 / 288, -1.0 / 540});
  const double c2 = Polynomial(eta, {1.0 / 1296, -139.0 / 51840, 25.0 / 6048});
  const double c3 = 101.0 / 155520;
  const double correction =
      std::exp(-a * half_square) / std::sqrt(2 * std::numbers::pi * a) * (c0 + (c1 + (c2 + c3 / a) / a) / a);
  const double argument = eta * std::sqrt(a / 2);
  return upper ? 0.5 * std::erfc(argument) + correction : 0.5 * std::erfc(-argument) - correction;
}

// The regularised incomplete gamma function, the upper or the lower one.
double IncompleteGamma(double a, double x, bool upper) {
  if (a != a || x != x || a < 0 || x < 0) return kNan;
  if (a == 0) return x > 0 ? !upper : kNan;
  if (x == 0) return upper;
  if (std::isinf(a)) return std::isinf(x) ? kNan : upper;
  if (std::isinf(x)) return !upper;
  if (a >= kUniform && std::fabs(x - a) < kNear * a) return Uniform(a, x, upper);
  if (x <= 1 && upper && a < 1) return UpperSeries(a, x);
  const bool by_upper = x > a + 1;
  const double value = by_upper ? UpperFraction(a, x) : LowerSeries(a, x);
  return by_upper == upper ? value : 1 - value;
}

// Hurwitz's zeta function, the sum of (q + k)^-s over k from 0 on, by Euler and Maclaurin.
double Zeta(double s, double q) {
  if (s == 1) return HUGE_VAL;
  if (!(s > 1) || q != q) return kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return HUGE_VAL;
    if (s != std::floor(s)) return kNan;
  }
  double sum = 0;
  for (; q < 10 + s; ++q) {
    const double term = std::pow(q, -s);
    sum += term;
    if (q > 0 && term <= kEpsilon * sum) return sum;
  }
  const double power = std::pow(q, -s);
  sum += power * q / (s - 1) + 0.5 * power;
  // Bernoulli numbers B(2j) / (2j)!
  constexpr double kTerms[] = {1.0 / 12,
                               -1.0 / 720,
                               1.0 / 30240,
                               -1.0 / 1209600,
                               1.0 / 47900160,
                               -691.0 / 1307674368e3,
                               1.0 / 74724249600.0,
                               -3617.0 / 10670622842880e3};
  double factor = s * power / q;
  for (int j = 0; j < 8; ++j) {
    const double term = kTerms[j] * factor;
    sum += term;
    if (std::fabs(term) < kEpsilon * std::fabs(sum)) break;
    factor *= (s + 2 * j + 1) * (s + 2 * j + 2) / (q * q);
  }
  return sum;
}

// The derivative of digamma of order n, at least 1.
double Polygamma(double n, double x) {
  const double size = std::tgamma(n + 1) * Zeta(n + 1, x);
  return std::fmod(n, 2) != 0 ? size : -size;
}

// The derivative of a sample x of the gamma distribution by its shape a, at a fixed quantile: that of the distribution
// function by a, from differences of fourth order of its smaller tail, over the density.
double GammaSampleGradient(double a, double x) {
  if (!(a > 0 && x > 0)) return kNan;
  const bool upper = x > a;
  // A fraction of the distance over which the tail changes by its own size.
  const double h = 1e-3 / (1 / std::fmin(a, std::sqrt(a)) + std::fabs(std::log(x / a)));
  const auto difference = [&](double step) {
    return IncompleteGamma(a + step, x, upper) - IncompleteGamma(a - step, x, upper);
  };
  const double slope = (8 * difference(h) - difference(2 * h)) / (12 * h), density = Front(a, x) * a / x;
  return (upper ? slope : -slope) / density;
}

NPU_ONNX_KERNEL(AtenFunction<"GammaSampleGrad">([](auto a, auto x) { return GammaSampleGradient(a, x); },
                                                {"self", "output"}));
NPU_ONNX_KERNEL(AtenFunction<"Igamma">([](auto a, auto x) { return IncompleteGamma(a, x, false); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"Igammac">([](auto a, auto x) { return IncompleteGamma(a, x, true); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"Zeta">([](auto s, auto q) { return Zeta(s, q); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"Polygamma">([](auto x, auto n) { return Polygamma(n, x); }, {"self"},
                                          {FloatAttribute("n")}));

}  // namespace
}  // namespace npu
