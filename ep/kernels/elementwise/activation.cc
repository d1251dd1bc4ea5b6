// Relu, LeakyRelu, Sigmoid, Tanh, Softplus, Gelu, Swish, SwiGlu (npu.fused). NaN goes in and comes out.
#include <numbers>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

// sqrt(2 / pi) (x + 0.044715 x³)
template <class C>
C GeluTanhInner(C x) {
  constexpr C kScale = static_cast<C>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return kScale * (x + static_cast<C>(0.044715) * x * x * x);
}

template <class F>
OpDef Gelu(F f) {
  return OnnxFunction<"Gelu">(f, {20, 20}, {"X"}, "Y");
}

OpDef GeluDef() {
  OpDef def = Gelu([](auto x) {
    using C = decltype(x);
    return C{0.5} * x * (1 + real::Erf(x * (std::numbers::sqrt2_v<C> / 2)));
  });
  const OpDef by_tanh = Gelu([](auto x) {
    using C = decltype(x);
    return C{0.5} * x * (1 + real::Tanh(GeluTanhInner(x)));
  });
  def.attributes = {StringAttribute("approximate", "none")};
  def.make = [none = def.make, tanh = by_tanh.make](const KernelInfo& info) {
    const std::string form = info.attributes.String("approximate");
    NPU_CHECK(form == "none" || form == "tanh", "[Gelu] expected approximate \"none\" or \"tanh\", got \"", form, "\"");
    return form == "tanh" ? tanh(info) : none(info);
  };
  def.unsupported = [](const NodeView& node) -> std::string {
    const std::string form = node.attributes.String("approximate");
    return form == "none" || form == "tanh" ? "" : "Gelu with approximate \"" + form + "\" is not implemented";
  };
  return def;
}

// What a fusion rule of the provider makes of Swish and a product.
OpDef SwiGluDef() {
  OpDef def = OnnxFunction<"SwiGlu">([](auto gate, auto x) { return gate * real::Sigmoid(gate) * x; }, {1, 1},
                                     {"gate", "x"}, "Y");
  def.domain = "npu.fused";
  return def;
}

NPU_ONNX_KERNEL(Light(OnnxFunction<"Relu", SignedTypes, kCheapGrain>([](auto x) { return x < 0 ? decltype(x){0} : x; },
                                                                     {6, 14}, {"X"}, "Y")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"LeakyRelu">([](auto x, auto alpha) { return x < 0 ? alpha * x : x; }, {6, 16},
                                                {"X"}, "Y", {FloatAttribute("alpha", 0.01)})));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Sigmoid">([](auto x) { return real::Sigmoid(x); }, {6, 13}, {"X"}, "Y")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Tanh">([](auto x) { return real::Tanh(x); }, {6, 13}, {"input"}, "output")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Softplus">(
    [](auto x) { return (x > 0 ? x : decltype(x){0}) + real::Log1pExpOfMinusAbs(x); }, {1, 22}, {"X"}, "Y")));
NPU_ONNX_KERNEL(Light(GeluDef()));
NPU_ONNX_KERNEL(SwiGluDef());
NPU_ONNX_KERNEL(OnnxFunction<"Swish">([](auto x, auto alpha) { return x * real::Sigmoid(alpha * x); }, {24, 24}, {"X"},
                                      "Y", {FloatAttribute("alpha", 1.0)}));

}  // namespace
}  // namespace npu
