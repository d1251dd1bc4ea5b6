// Gelu (by the error function), QuickGelu (by a sigmoid), BiasGelu and FastGelu (of a sum with an optional bias).
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/activation/activations.h"
#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

struct ErfGelu {
  float operator()(float x) const { return GeluErf(x); }
  double operator()(double x) const { return 0.5 * x * std::erfc(-x * 0.70710678118654752440); }
};
struct TanhGelu {
  float operator()(float x) const { return GeluTanh(x); }
  double operator()(double x) const {
    return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  }
};

constexpr Versions kFirst{1, 1};

NPU_ONNX_KERNEL(Microsoft(OnnxFunction<"Gelu">([](auto x) { return ErfGelu{}(x); }, kFirst, {"X"}, "Y")));
NPU_ONNX_KERNEL(Microsoft(OnnxFunction<"QuickGelu">([](auto x, auto alpha) { return x * real::Sigmoid(alpha * x); },
                                                    kFirst, {"X"}, "Y", {FloatAttribute("alpha", 1.702)})));
NPU_ONNX_KERNEL(Microsoft(OnnxFunction<"BiasGelu">([](auto a, auto b) { return ErfGelu{}(a + b); }, kFirst, {"A", "B"},
                                                   "C")));

OpDef FastGeluDef() {
  const OpDef plain = OnnxFunction<"FastGelu">([](auto x) { return TanhGelu{}(x); }, kFirst, {"X"}, "Y");
  const OpDef biased =
      OnnxFunction<"FastGelu">([](auto x, auto bias) { return TanhGelu{}(x + bias); }, kFirst, {"X", "bias"}, "Y");
  OpDef def = biased;
  def.inputs[1].optional = true;
  def.may_alias = plain.may_alias;
  def.make = [plain, biased](const KernelInfo& info) {
    const bool bias = info.input_dtypes.size() > 1 && info.input_dtypes[1] != DType::kUndefined;
    return (bias ? biased : plain).make(info);
  };
  return def;
}

NPU_ONNX_KERNEL(Microsoft(FastGeluDef()));

}  // namespace
}  // namespace npu
