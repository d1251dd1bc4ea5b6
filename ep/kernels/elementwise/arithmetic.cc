// Add, Sub, Mul, Div, Mod. Integers wrap; a zero divisor of integers is an error that surfaces at the
// next synchronize; the quotient and the remainder of INT_MIN by -1 are INT_MIN and 0.
#include <cmath>

#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

// No divisor of integers may be zero.
template <Text name>
struct Division {
  template <class C>
  static bool Takes(C, C divisor) {
    return !std::is_integral_v<C> || divisor != 0;
  }
  template <class C>
  [[noreturn]] static void Refuse(C, C) {
    Fail(ErrorCode::kInvalidArgument, "[", name.characters,
         "] expected a non-zero divisor, got an integer division by zero");
  }
};

struct Div : Division<"Div"> {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C> && std::is_signed_v<C>) {
      if (b == C{-1}) return static_cast<C>(-Modular(a));
    }
    return static_cast<C>(a / b);
  }
};

// Of integers, with the dividend's sign.
template <class C>
C Remainder(C a, C b) {
  if constexpr (std::is_signed_v<C>) {
    if (b == C{-1}) return 0;
  }
  return static_cast<C>(a % b);
}

// The sign of the result is the divisor's.
struct FloorMod : Division<"Mod"> {
  template <class C>
  C operator()(C a, C b) const {
    const C r = Remainder(a, b);
    if constexpr (std::is_signed_v<C>) {
      if (r != 0 && (r < 0) != (b < 0)) return static_cast<C>(r + b);
    }
    return r;
  }
};

// The sign of the result is the dividend's.
struct FMod : Division<"Mod"> {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      return Remainder(a, b);
    } else {
      return std::fmod(a, b);
    }
  }
};

template <Text name, class List = NumericTypes, class F>
OpDef Arithmetic(F f, Versions versions = {7, 14}) {
  return ForShapes(OnnxFunction<name, List, kCheapGrain>(f, versions, {"A", "B"}, "C"), ShapeArithmetic::kElementwise);
}

OpDef ModDef() {
  OpDef def = Arithmetic<"Mod">(FMod{}, {10, 13});
  def.attributes = {IntAttribute("fmod", 0)};
  def.make = [fmod = def.make, floor = Arithmetic<"Mod", IntegerTypes>(FloorMod{}).make](const KernelInfo& info) {
    return info.attributes.Bool("fmod") ? fmod(info) : floor(info);
  };
  def.unsupported = [](const NodeView& node) -> std::string {
    if (node.attributes.Bool("fmod") || !IsFloating(node.inputs[0])) return "";
    return "Mod of floating-point inputs needs fmod=1";
  };
  return def;
}

NPU_ONNX_KERNEL(Arithmetic<"Add">([](auto a, auto b) { return Modular(a) + Modular(b); }));
NPU_ONNX_KERNEL(Arithmetic<"Sub">([](auto a, auto b) { return Modular(a) - Modular(b); }));
NPU_ONNX_KERNEL(Arithmetic<"Mul">([](auto a, auto b) { return Modular(a) * Modular(b); }));
NPU_ONNX_KERNEL(Arithmetic<"Div">(Div{}));
NPU_ONNX_KERNEL(ModDef());

}  // namespace
}  // namespace npu
