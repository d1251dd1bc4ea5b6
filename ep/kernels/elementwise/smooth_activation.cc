// Smooth activations beside those of activation.cc, torch's forms of some, and gradients.
#include <cmath>
#include <numbers>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

// With w = e^x and n = w² + 2w, tanh(log(1 + w)) = n / (n + 2): no cancellation for any x. From 20 on, that is 1 in
// float, from 40 on in double.
template <class C>
struct Squashed {
  explicit Squashed(C x) {
    const C w = real::Exp(x > 40 ? C{40} : x);
    n = w * (w + 2);
  }
  C Value() const { return n / (n + 2); }
  C OneMinusSquare() const { return 2 / (n + 2) * (1 + Value()); }
  C n;
};

NPU_ONNX_KERNEL(OnnxFunction<"Mish">([](auto x) { return x * Squashed(x).Value(); }, {18, 22}, {"X"}, "Y"));
NPU_ONNX_KERNEL(AtenFunction<"MishGrad">(
    [](auto g, auto x) {
      const Squashed squashed(x);
      return g * (squashed.Value() + x * squashed.OneMinusSquare() * real::Sigmoid(x));
    },
    {"grad", "self"}));

// log(1 + e^(beta x)) / beta, a line from the threshold on.
NPU_ONNX_KERNEL(AtenFunction<"Softplus">(
    [](auto x, auto beta, auto threshold) {
      using C = decltype(x);
      const C scaled = x * beta;
      const C curve = ((scaled > 0 ? scaled : C{0}) + real::Log1pExpOfMinusAbs(scaled)) / beta;
      return scaled > threshold ? x : curve;
    },
    {"self"}, {FloatAttribute("beta"), FloatAttribute("threshold")}));
NPU_ONNX_KERNEL(AtenFunction<"SoftplusGrad">(
    [](auto g, auto x, auto beta, auto threshold) {
      const auto scaled = x * beta;
      const auto slope = g * real::Sigmoid(scaled);
      return scaled > threshold ? g : slope;
    },
    {"grad", "self"}, {FloatAttribute("beta"), FloatAttribute("threshold")}));

NPU_ONNX_KERNEL(AtenFunction<"LogSigmoid">([](auto x) { return real::LogSigmoid(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"LogSigmoidGrad">([](auto g, auto x) { return g * real::Sigmoid(-x); }, {"grad", "self"}));

// The first half of a gated linear unit, gated by the second; the gradients by each.
NPU_ONNX_KERNEL(AtenFunction<"Glu">([](auto a, auto b) { return a * real::Sigmoid(b); }, {"gated", "gate"}));
NPU_ONNX_KERNEL(AtenFunction<"GluGrad">([](auto g, auto b) { return g * real::Sigmoid(b); }, {"grad", "gate"}));
NPU_ONNX_KERNEL(AtenFunction<"GluGateGrad">(
    [](auto g, auto a, auto b) {
      const auto gate = real::Sigmoid(b);
      return g * a * gate * (1 - gate);
    },
    {"grad", "gated", "gate"}));

// Of the result y.
NPU_ONNX_KERNEL(AtenFunction<"SigmoidGrad">([](auto g, auto y) { return g * (1 - y) * y; }, {"grad", "result"}));
NPU_ONNX_KERNEL(AtenFunction<"TanhGrad">([](auto g, auto y) { return g * (1 - y * y); }, {"grad", "result"}));

NPU_ONNX_KERNEL(AtenFunction<"SiluGrad">(
    [](auto g, auto x) {
      const auto s = real::Sigmoid(x);
      return g * s * (1 + x * (1 - s));
    },
    {"grad", "self"}));

// x * Phi(x): by Phi(x) + x * phi(x).
NPU_ONNX_KERNEL(AtenFunction<"GeluGrad">(
    [](auto g, auto x) {
      using C = decltype(x);
      constexpr C kRoot = std::numbers::sqrt2_v<C> / 2, kDensity = std::numbers::inv_sqrtpi_v<C> * kRoot;
      const C cdf = C{0.5} * (1 + real::Erf(x * kRoot));
      return g * (cdf + x * (kDensity * real::Exp(C{-0.5} * x * x)));
    },
    {"grad", "self"}));
NPU_ONNX_KERNEL(AtenFunction<"GeluTanhGrad">(
    [](auto g, auto x) {
      using C = decltype(x);
      constexpr C kScale = std::numbers::sqrt2_v<C> * std::numbers::inv_sqrtpi_v<C>, kCube = static_cast<C>(0.044715);
      const C t = real::Tanh(kScale * (x + kCube * x * x * x));
      const C slope = kScale * (1 + 3 * kCube * x * x);
      return g * (C{0.5} * (1 + t) + C{0.5} * x * (1 - t * t) * slope);
    },
    {"grad", "self"}));

}  // namespace
}  // namespace npu
