// Trigonometric and hyperbolic functions and their inverses.
#include <cmath>
#include <numbers>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

template <Text name, class F>
OpDef Standard(F f, int since) {
  return OnnxFunction<name>(f, {since, 22}, {"input"}, "output");
}

NPU_ONNX_KERNEL(Standard<"Acos">([](auto x) { return std::acos(x); }, 7));
NPU_ONNX_KERNEL(Standard<"Asin">([](auto x) { return std::asin(x); }, 7));
NPU_ONNX_KERNEL(Light(Standard<"Atan">([](auto x) { return std::atan(x); }, 7)));
NPU_ONNX_KERNEL(Standard<"Tan">([](auto x) { return std::tan(x); }, 7));
NPU_ONNX_KERNEL(Standard<"Acosh">([](auto x) { return std::acosh(x); }, 9));
NPU_ONNX_KERNEL(Standard<"Asinh">([](auto x) { return std::asinh(x); }, 9));
NPU_ONNX_KERNEL(Standard<"Atanh">([](auto x) { return std::atanh(x); }, 9));
NPU_ONNX_KERNEL(Standard<"Cosh">([](auto x) { return std::cosh(x); }, 9));
NPU_ONNX_KERNEL(Standard<"Sinh">([](auto x) { return std::sinh(x); }, 9));

// sin(pi x) / (pi x)
template <class C>
C Sinc(C x) {
  const C scaled = x * std::numbers::pi_v<C>;
  return x == 0 ? C{1} : std::sin(scaled) / scaled;
}

NPU_ONNX_KERNEL(AtenFunction<"Sinc">([](auto x) { return Sinc(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Atan2">([](auto y, auto x) { return std::atan2(y, x); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"Hypot">([](auto x, auto y) { return std::hypot(x, y); }, {"self", "other"}));

}  // namespace
}  // namespace npu
