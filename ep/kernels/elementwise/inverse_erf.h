// The inverse of the error function.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

namespace npu {

// The x of erf(x) = y, with `below` = 1 + y and `above` = 1 - y, which y has lost near the ends. Giles' approximation
// ("Approximating the erfinv function", 2011), good to float, then Halley's method.
inline double InverseErf(double y, double below, double above) {
  if (!(below > 0 && above > 0)) return below == 0 ? -HUGE_VAL : above == 0 ? HUGE_VAL : std::nan("");
  double w = -std::log(above * below), x;
  if (w < 5) {
    w -= 2.5;
    double p = 2.81022636e-08;
    for (const double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                           -0.00417768164, 0.246640727, 1.50140941})
      p = c + p * w;
    x = p * y;
  } else if (w < 16) {
    w = std::sqrt(w) - 3;
    double p = -0.000200214257;
    for (const double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
                           1.00167406, 2.83297682})
      p = c + p * w;
    x = p * y;
  } else {
    // Of tails beyond float's, the first terms of the asymptotic series.
    const double log = -std::log(std::fmin(below, above));
    x = std::copysign(std::sqrt(log - 0.5 * std::log(std::numbers::pi * log)), y);
  }
  constexpr int kMaxSteps = 6;  // one or two, but for tails beyond float's
  for (int i = 0; i < kMaxSteps; ++i) {
    // Near 0 of erf, else of the tail, whose digits erf has lost.
    const double error = std::fabs(y) < 0.5 ? std::erf(x) - y : y > 0 ? above - std::erfc(x) : std::erfc(-x) - below;
    const double step = error / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
    x -= step / (1 + x * step);
    if (std::fabs(step) <= std::numeric_limits<double>::epsilon() * std::fabs(x)) break;
  }
  return x;
}

}  // namespace npu
