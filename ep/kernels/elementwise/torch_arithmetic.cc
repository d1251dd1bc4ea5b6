// Arithmetic and rounding as torch defines them where ONNX has no such operator.
#include <cmath>

#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

template <class C>
bool HasSign(C x) {
  if constexpr (std::is_integral_v<C>) {
    return x < 0;
  } else {
    return std::signbit(x);
  }
}

NPU_ONNX_KERNEL(AtenFunction<"Trunc">([](auto x) { return std::trunc(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"Frac">([](auto x) { return x - std::trunc(x); }, {"self"}));
// 0 of NaN, where ONNX says NaN.
NPU_ONNX_KERNEL(AtenFunction<"Sign">([](auto x) { return (x > 0) - (x < 0); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"CopySign">([](auto x, auto y) { return std::copysign(x, y); }, {"self", "other"}));
// The larger and the smaller one; a number if one of them is NaN, where ONNX's Max and Min say NaN.
NPU_ONNX_KERNEL(AtenFunction<"FMax">([](auto x, auto y) { return x != x || x < y ? y : x; }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"FMin">([](auto x, auto y) { return x != x || x > y ? y : x; }, {"self", "other"}));
// From the nearer end, so that both ends are met.
NPU_ONNX_KERNEL(AtenFunction<"Lerp">(
    [](auto a, auto b, auto weight) {
      return weight < 0.5f && weight > -0.5f ? a + weight * (b - a) : b - (b - a) * (1 - weight);
    },
    {"self", "end", "weight"}));
NPU_ONNX_KERNEL(AtenFunction<"NanToNum">(
    [](auto x, auto nan, auto above, auto below) {
      return x != x ? nan : std::fabs(x) != HUGE_VALF ? x : x > 0 ? above : below;
    },
    {"self"}, {FloatAttribute("nan"), FloatAttribute("posinf"), FloatAttribute("neginf")}));

// 0 of negative numbers, 1 of positive ones, and otherwise the second operand; 0 of NaN.
NPU_ONNX_KERNEL(AtenFunction<"Heaviside", NumericTypes, kCheapGrain>(
    [](auto x, auto y) { return x == 0 ? y : static_cast<decltype(y)>(x > 0); }, {"self", "values"}));
NPU_ONNX_KERNEL(AtenFunction<"SignBit", SignedTypes, kCheapGrain>([](auto x) { return HasSign(x); }, {"self"}));
NPU_ONNX_KERNEL(AtenFunction<"NextAfter", Types<float, double>>([](auto x, auto y) { return std::nextafter(x, y); },
                                                                {"self", "other"}));

struct Quotient {
  template <class C>
  static bool Takes(C, C divisor) {
    return !std::is_integral_v<C> || divisor != 0;
  }
  template <class C>
  [[noreturn]] static void Refuse(C, C) {
    Fail(ErrorCode::kDeviceError, "ZeroDivisionError: an integer was divided by 0");
  }
  // Of integers, as C rounds it; that of the least number by -1 wraps.
  template <class C>
  static C Truncated(C a, C b) {
    if constexpr (std::is_signed_v<C>) {
      if (b == C{-1}) return static_cast<C>(-Modular(a));
    }
    return static_cast<C>(a / b);
  }
};

struct TruncateDivide : Quotient {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      return Truncated(a, b);
    } else {
      return std::trunc(a / b);
    }
  }
};

// The quotient whose remainder has the divisor's sign, exact where a / b is not.
struct FloorDivide : Quotient {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      const C quotient = Truncated(a, b);
      if constexpr (std::is_signed_v<C>) {
        if (b != C{-1} && a % b != 0 && (a < 0) != (b < 0)) return static_cast<C>(quotient - 1);
      }
      return quotient;
    } else {
      if (b == 0) return a / b;
      const C rest = std::fmod(a, b);
      C quotient = (a - rest) / b;
      if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
      if (quotient == 0) return std::copysign(C{0}, a / b);
      const C whole = std::floor(quotient);
      return quotient - whole > C{0.5} ? whole + 1 : whole;
    }
  }
};

NPU_ONNX_KERNEL(AtenFunction<"FloorDivide", NumericTypes, kCheapGrain>(FloorDivide{}, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"TruncateDivide", NumericTypes, kCheapGrain>(TruncateDivide{}, {"self", "other"}));

}  // namespace
}  // namespace npu
