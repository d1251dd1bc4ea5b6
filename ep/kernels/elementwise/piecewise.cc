// Activations in pieces, of lines and exponentials: ONNX's, and torch's forms of them. NaN goes in and comes out.
#include <cmath>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

template <class C>
C Clamp(C x, C low, C high) {
  return x < low ? low : x > high ? high : x;
}

// scale * x above 0, scale * alpha * (e^(input_scale * x) - 1) below.
template <class C>
C Elu(C x, C alpha, C scale, C input_scale) {
  return x < 0 ? real::Expm1(x * input_scale) * (alpha * scale) : x * scale;
}

using PReluTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;

using ShrinkTypes =
    Types<float, Float16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;

template <class C>
C PRelu(C x, C slope) {
  if constexpr (std::is_integral_v<C>) {
    return x >= 0 ? x : static_cast<C>(static_cast<Wrapping<C>>(x) * static_cast<Wrapping<C>>(slope));
  } else {
    return x >= 0 ? x : slope * x;
  }
}

OpDef PReluDef() {
  OpDef def = OnnxFunction<"PRelu", PReluTypes>([](auto x, auto slope) { return PRelu(x, slope); }, {7, 16},
                                                {"X", "slope"}, "Y");
  def.may_alias = {{0, 0}};
  return def;
}

NPU_ONNX_KERNEL(PReluDef());
NPU_ONNX_KERNEL(Light(OnnxFunction<"Elu">(
    [](auto x, auto alpha) {
      using C = decltype(x);
      return Elu(x, alpha, C{1}, C{1});
    },
    {6, 22}, {"X"}, "Y", {FloatAttribute("alpha", 1.0)})));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Selu">(
    [](auto x, auto alpha, auto gamma) { return Elu(x, alpha, gamma, decltype(x){1}); }, {6, 22}, {"X"}, "Y",
    {FloatAttribute("alpha", 1.67326319217681884765625), FloatAttribute("gamma", 1.05070102214813232421875)})));
NPU_ONNX_KERNEL(Light(
    OnnxFunction<"Celu", Types<float>>([](auto x, auto alpha) { return x < 0 ? alpha * real::Expm1(x / alpha) : x; },
                                       {12, 12}, {"X"}, "Y", {FloatAttribute("alpha", 1.0)})));
NPU_ONNX_KERNEL(Light(OnnxFunction<"HardSigmoid">(
    [](auto x, auto alpha, auto beta) {
      using C = decltype(x);
      return Clamp(alpha * x + beta, C{0}, C{1});
    },
    {6, 22}, {"X"}, "Y", {FloatAttribute("alpha", 0.2), FloatAttribute("beta", 0.5)})));
NPU_ONNX_KERNEL(Light(OnnxFunction<"HardSwish">(
    [](auto x) {
      using C = decltype(x);
      return x * Clamp(x + 3, C{0}, C{6}) / 6;
    },
    {14, 22}, {"X"}, "Y")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"ThresholdedRelu">([](auto x,
                                                         auto alpha) { return x <= alpha ? decltype(x){0} : x; },
                                                      {10, 22}, {"X"}, "Y", {FloatAttribute("alpha", 1.0)})));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Softsign">([](auto x) { return x / (1 + std::fabs(x)); }, {1, 22}, {"input"},
                                               "output")));
NPU_ONNX_KERNEL(OnnxFunction<"Shrink", ShrinkTypes>(
    [](auto x, auto bias, auto lambd) {
      const auto v = static_cast<decltype(bias)>(x);  // of integers, double
      return v < -lambd ? v + bias : v > lambd ? v - bias : 0;
    },
    {9, 9}, {"input"}, "output", {FloatAttribute("bias", 0.0), FloatAttribute("lambd", 0.5)}));

NPU_ONNX_KERNEL(AtenFunction<"Elu">([](auto x, auto alpha, auto scale,
                                       auto input_scale) { return Elu(x, alpha, scale, input_scale); },
                                    {"self"},
                                    {FloatAttribute("alpha"), FloatAttribute("scale"), FloatAttribute("input_scale")}));
NPU_ONNX_KERNEL(AtenFunction<"EluGrad">(
    [](auto g, auto x, auto alpha, auto scale, auto input_scale) {
      const auto below = input_scale * real::Exp(x * input_scale) * (alpha * scale);
      return g * (x > 0 ? scale : below);
    },
    {"grad", "self"}, {FloatAttribute("alpha"), FloatAttribute("scale"), FloatAttribute("input_scale")}));
// Of the result y, whose sign is that of x.
NPU_ONNX_KERNEL(AtenFunction<"EluGradOfResult">(
    [](auto g, auto y, auto alpha, auto scale, auto input_scale) {
      return g * (y > 0 ? scale : input_scale * (y + alpha * scale));
    },
    {"grad", "result"}, {FloatAttribute("alpha"), FloatAttribute("scale"), FloatAttribute("input_scale")}));
NPU_ONNX_KERNEL(AtenFunction<"LeakyReluGrad">([](auto g, auto x, auto slope) { return x > 0 ? g : g * slope; },
                                              {"grad", "self"}, {FloatAttribute("negative_slope")}));
NPU_ONNX_KERNEL(AtenFunction<"PReluGrad">([](auto g, auto x, auto slope) { return x > 0 ? g : slope * g; },
                                          {"grad", "self", "weight"}));
NPU_ONNX_KERNEL(AtenFunction<"PReluSlopeGrad">([](auto g, auto x) { return x > 0 ? decltype(x){0} : x * g; },
                                               {"grad", "self"}));
NPU_ONNX_KERNEL(AtenFunction<"HardSigmoidGrad">([](auto g, auto x) { return x > -3 && x < 3 ? g / 6 : decltype(x){0}; },
                                                {"grad", "self"}));
NPU_ONNX_KERNEL(AtenFunction<"HardSwishGrad">(
    [](auto g, auto x) {
      using C = decltype(x);
      return x <= -3 ? C{0} : x < 3 ? g * (x / 3 + C{0.5}) : g;
    },
    {"grad", "self"}));
NPU_ONNX_KERNEL(AtenFunction<"HardTanhGrad">([](auto g, auto x, auto low,
                                                auto high) { return x <= low || x >= high ? decltype(x){0} : g; },
                                             {"grad", "self"}, {FloatAttribute("min_val"), FloatAttribute("max_val")}));

// Unlike ONNX's Shrink, which makes NaN 0.
template <class C>
bool Within(C x, C limit) {
  return x >= -limit && x <= limit;
}
NPU_ONNX_KERNEL(AtenFunction<"HardShrink">([](auto x, auto lambd) { return Within(x, lambd) ? decltype(x){0} : x; },
                                           {"self"}, {FloatAttribute("lambd")}));
NPU_ONNX_KERNEL(AtenFunction<"SoftShrink">(
    [](auto x, auto lambd) { return x > lambd    ? x - lambd
                                    : x < -lambd ? x + lambd
                                                 : x * 0; }, {"self"},
    {FloatAttribute("lambd")}));
NPU_ONNX_KERNEL(AtenFunction<"ShrinkGrad">([](auto g, auto x,
                                              auto lambd) { return Within(x, lambd) ? decltype(x){0} : g; },
                                           {"grad", "self"}, {FloatAttribute("lambd")}));

}  // namespace
}  // namespace npu
