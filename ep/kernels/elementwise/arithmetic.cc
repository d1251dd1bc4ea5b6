// Add, Sub, Mul, Div, Mod. Integers wrap; a zero divisor of integers is an error that surfaces at the
// next synchronize; the quotient and the remainder of INT_MIN by -1 are INT_MIN and 0.
#include <cmath>
#include <limits>

#include "ep/kernels/elementwise/binary.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

template <class C, class F>
C Wrap(C a, C b, F f) {
  if constexpr (std::is_integral_v<C>) {
    // Through uint64_t, because a product of two uint16_t would be computed in, and overflow, int.
    return static_cast<C>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return f(a, b);
  }
}

struct Add {
  static constexpr const char* kName = "Add";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    return Wrap(a, b, [](auto x, auto y) { return x + y; });
  }
};

struct Sub {
  static constexpr const char* kName = "Sub";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    return Wrap(a, b, [](auto x, auto y) { return x - y; });
  }
};

struct Mul {
  static constexpr const char* kName = "Mul";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    return Wrap(a, b, [](auto x, auto y) { return x * y; });
  }
};

// No divisor of integers may be zero.
template <class Op>
struct Division {
  template <class C>
  static void Check(const C* b, int64_t n) {
    if constexpr (std::is_integral_v<C>) {
      int zero = 0;
      for (int64_t i = 0; i < n; ++i) zero |= b[i] == 0;
      NPU_CHECK(zero == 0, "[", Op::kName, "] expected a non-zero divisor, got an integer division by zero");
    }
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

struct Div : Division<Div> {
  static constexpr const char* kName = "Div";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    if constexpr (std::is_integral_v<C> && std::is_signed_v<C>) {
      if (b == C{-1}) return static_cast<C>(0 - static_cast<Wrapping<C>>(a));
    }
    return static_cast<C>(a / b);
  }
};

// The sign of the result is the divisor's.
struct FloorMod : Division<FloorMod> {
  static constexpr const char* kName = "Mod";
  using Types = IntegerTypes;
  template <class C>
  static C Apply(C a, C b) {
    const C r = Remainder(a, b);
    if constexpr (std::is_signed_v<C>) {
      if (r != 0 && (r < 0) != (b < 0)) return static_cast<C>(r + b);
    }
    return r;
  }
};

// The sign of the result is the dividend's.
struct FMod : Division<FMod> {
  static constexpr const char* kName = "Mod";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return Remainder(a, b);
    } else {
      return std::fmod(a, b);
    }
  }
};

std::unique_ptr<Kernel> MakeMod(const KernelInfo& info) {
  if (info.attributes.Bool("fmod")) return std::make_unique<BinaryKernel<FMod>>(info);
  return std::make_unique<BinaryKernel<FloorMod>>(info);
}

OpDef ModDef() {
  OpDef def = ArithmeticDef<FMod>(10, 13);
  def.attributes = {IntAttribute("fmod", 0)};
  def.make = MakeMod;
  def.unsupported = [](const NodeView& node) -> std::string {
    if (node.attributes.Bool("fmod") || !IsFloating(node.inputs[0])) return "";
    return "Mod of floating-point inputs needs fmod=1";
  };
  return def;
}

NPU_ONNX_KERNEL(ForShapes(ArithmeticDef<Add>(7, 14), ShapeArithmetic::kElementwise));
NPU_ONNX_KERNEL(ForShapes(ArithmeticDef<Sub>(7, 14), ShapeArithmetic::kElementwise));
NPU_ONNX_KERNEL(ForShapes(ArithmeticDef<Mul>(7, 14), ShapeArithmetic::kElementwise));
NPU_ONNX_KERNEL(ForShapes(ArithmeticDef<Div>(7, 14), ShapeArithmetic::kElementwise));
NPU_ONNX_KERNEL(ForShapes(ModDef(), ShapeArithmetic::kElementwise));

}  // namespace
}  // namespace npu
