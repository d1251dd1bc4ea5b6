// Losses that compare element with element, before they are summed, and their gradients: of the loss times `scale`.
#include <algorithm>
#include <cmath>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

NPU_ONNX_KERNEL(AtenFunction<"MseLoss">([](auto x, auto y) { return (x - y) * (x - y); }, {"self", "target"}));
NPU_ONNX_KERNEL(AtenFunction<"MseLossGrad">([](auto g, auto x, auto y,
                                               auto scale) { return g * (2 * (x - y)) * scale; },
                                            {"grad", "self", "target"}, {FloatAttribute("scale")}));

NPU_ONNX_KERNEL(AtenFunction<"SmoothL1Loss">(
    [](auto x, auto y, auto beta) {
      const auto distance = std::fabs(x - y);
      return distance < beta ? distance * distance / (2 * beta) : distance - beta / 2;
    },
    {"self", "target"}, {FloatAttribute("beta")}));
NPU_ONNX_KERNEL(AtenFunction<"SmoothL1LossGrad">(
    [](auto g, auto x, auto y, auto beta, auto scale) {
      using C = decltype(x);
      const C way = x - y, sign = way > 0 ? C{1} : way < 0 ? C{-1} : C{0};
      return g * (std::fabs(way) < beta ? way / beta : sign) * scale;
    },
    {"grad", "self", "target"}, {FloatAttribute("beta"), FloatAttribute("scale")}));

NPU_ONNX_KERNEL(AtenFunction<"HuberLoss">(
    [](auto x, auto y, auto delta) {
      const auto distance = std::fabs(x - y);
      return distance < delta ? distance * distance / 2 : delta * (distance - delta / 2);
    },
    {"self", "target"}, {FloatAttribute("delta")}));
NPU_ONNX_KERNEL(AtenFunction<"HuberLossGrad">(
    [](auto g, auto x, auto y, auto delta, auto scale) {
      const auto way = x - y;
      return g * (way < -delta ? -delta : way > delta ? delta : way) * scale;
    },
    {"grad", "self", "target"}, {FloatAttribute("delta"), FloatAttribute("scale")}));

// Logarithms stop at -100, so that the loss is finite.
struct BinaryCrossEntropy {
  template <class C>
  C operator()(C x, C y) const {
    const C no = real::Log1p(-x), yes = real::Log(x);
    return (y - 1) * (no < -100 ? C{-100} : no) - y * (yes < -100 ? C{-100} : yes);
  }
  template <class C>
  static bool Takes(C x, C) {
    return x >= 0 && x <= 1;
  }
  template <class C>
  [[noreturn]] static void Refuse(C x, C) {
    Fail(ErrorCode::kInvalidArgument, "[binary_cross_entropy] expected inputs between 0 and 1, got ", x);
  }
};
NPU_ONNX_KERNEL(AtenFunction<"BinaryCrossEntropy">(BinaryCrossEntropy{}, {"self", "target"}));
NPU_ONNX_KERNEL(AtenFunction<"BinaryCrossEntropyGrad">(
    [](auto g, auto x, auto y, auto scale) {
      using C = decltype(x);
      return g * ((x - y) / std::max((1 - x) * x, static_cast<C>(1e-12))) * scale;
    },
    {"grad", "self", "target"}, {FloatAttribute("scale")}));

template <class C>
C CrossEntropyOfLogit(C x, C y, C positive) {
  return (1 - y) * x - (1 + (positive - 1) * y) * real::LogSigmoid(x);
}
NPU_ONNX_KERNEL(AtenFunction<"BinaryCrossEntropyWithLogits">(
    [](auto x, auto y) { return CrossEntropyOfLogit(x, y, decltype(x){1}); }, {"self", "target"}));
NPU_ONNX_KERNEL(AtenFunction<"BinaryCrossEntropyWithLogitsWeighted">(
    [](auto x, auto y, auto positive) { return CrossEntropyOfLogit(x, y, positive); },
    {"self", "target", "pos_weight"}));

}  // namespace
}  // namespace npu
