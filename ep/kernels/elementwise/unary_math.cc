// The unary operators of arithmetic, rounding and elementary functions.
#include <cmath>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/real.h"

namespace npu {
namespace {

// -x, wrapping; in the width of C, which Modular() is not: eight times as many int8 in a register.
template <class C>
C Negated(C x) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(Wrapping<C>{0} - static_cast<Wrapping<C>>(x));
  } else {
    return -x;
  }
}

template <class C>
C Magnitude(C x) {
  if constexpr (!std::is_integral_v<C>) {
    return std::fabs(x);
  } else if constexpr (std::is_signed_v<C>) {
    return x < 0 ? Negated(x) : x;  // that of the least number is itself
  } else {
    return x;
  }
}

template <class C>
C SignOf(C x) {
  if constexpr (std::is_unsigned_v<C>) {
    return x > 0 ? C{1} : C{0};
  } else {
    const C y = x > 0 ? C{1} : (x < 0 ? C{-1} : C{0});
    return x != x ? x : y;
  }
}

struct Sin {
  template <class C>
  C operator()(C x) const {
    return std::sin(x);
  }
  void Row(const float* x, float* y, int64_t n) const { math::SinRow(x, y, n); }
};
struct Cos {
  template <class C>
  C operator()(C x) const {
    return std::cos(x);
  }
  void Row(const float* x, float* y, int64_t n) const { math::CosRow(x, y, n); }
};

// An operator of few cycles that models also use to compute shapes.
template <Text name, class List = FloatTypes, class F>
OpDef Plain(F f) {
  return ForShapes(OnnxFunction<name, List, kCheapGrain>(f, {6, 13}, {"X"}, "Y"), ShapeArithmetic::kFirst);
}

NPU_ONNX_KERNEL(Plain<"Neg", SignedTypes>([](auto x) { return Negated(x); }));
NPU_ONNX_KERNEL(Plain<"Abs", NumericTypes>([](auto x) { return Magnitude(x); }));
NPU_ONNX_KERNEL(Plain<"Sqrt">([](auto x) { return std::sqrt(x); }));
NPU_ONNX_KERNEL(Plain<"Reciprocal">([](auto x) { return 1 / x; }));
NPU_ONNX_KERNEL(Plain<"Floor">([](auto x) { return std::floor(x); }));
NPU_ONNX_KERNEL(Plain<"Ceil">([](auto x) { return std::ceil(x); }));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Sign", NumericTypes, kCheapGrain>([](auto x) { return SignOf(x); }, {9, 13},
                                                                      {"input"}, "output")));
// Half to even.
NPU_ONNX_KERNEL(Light(OnnxFunction<"Round", FloatTypes, kCheapGrain>([](auto x) { return std::nearbyint(x); }, {11, 22},
                                                                     {"X"}, "Y")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Exp">([](auto x) { return real::Exp(x); }, {6, 13}, {"input"}, "output")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Log">([](auto x) { return real::Log(x); }, {6, 13}, {"input"}, "output")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Erf">([](auto x) { return real::Erf(x); }, {9, 13}, {"input"}, "output")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Sin">(Sin{}, {7, 22}, {"input"}, "output")));
NPU_ONNX_KERNEL(Light(OnnxFunction<"Cos">(Cos{}, {7, 22}, {"input"}, "output")));

}  // namespace
}  // namespace npu
