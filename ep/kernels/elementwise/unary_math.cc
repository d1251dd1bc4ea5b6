// The unary operators of arithmetic, rounding and elementary functions.
#include <cmath>

#include "ep/kernels/elementwise/unary.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

template <class T>
inline constexpr bool kInteger = std::is_integral_v<T>;

struct Neg {
  static constexpr const char* kName = "Neg";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = SignedTypes;
  template <class C>
  C operator()(C x) const {
    if constexpr (kInteger<C>) {
      return static_cast<C>(Wrapping<C>{0} - static_cast<Wrapping<C>>(x));
    } else {
      return -x;
    }
  }
};

struct Abs {
  static constexpr const char* kName = "Abs";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = NumericTypes;
  template <class C>
  C operator()(C x) const {
    if constexpr (!kInteger<C>) {
      return std::fabs(x);
    } else if constexpr (std::is_signed_v<C>) {
      return x < 0 ? static_cast<C>(Wrapping<C>{0} - static_cast<Wrapping<C>>(x)) : x;
    } else {
      return x;
    }
  }
};

struct Sign {
  static constexpr const char* kName = "Sign";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = NumericTypes;
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_unsigned_v<C>) {
      return x > 0 ? C{1} : C{0};
    } else {
      const C y = x > 0 ? C{1} : (x < 0 ? C{-1} : C{0});
      return x != x ? x : y;
    }
  }
};

template <int64_t grain>
struct FloatFunction {
  static constexpr int64_t kGrain = grain;
  using Types = FloatTypes;
};

struct Sqrt : FloatFunction<kCheapGrain> {
  static constexpr const char* kName = "Sqrt";
  template <class C>
  C operator()(C x) const {
    return std::sqrt(x);
  }
};
struct Reciprocal : FloatFunction<kCheapGrain> {
  static constexpr const char* kName = "Reciprocal";
  template <class C>
  C operator()(C x) const {
    return C{1} / x;
  }
};
struct Floor : FloatFunction<kCheapGrain> {
  static constexpr const char* kName = "Floor";
  template <class C>
  C operator()(C x) const {
    return std::floor(x);
  }
};
struct Ceil : FloatFunction<kCheapGrain> {
  static constexpr const char* kName = "Ceil";
  template <class C>
  C operator()(C x) const {
    return std::ceil(x);
  }
};
struct Round : FloatFunction<kCheapGrain> {  // half to even
  static constexpr const char* kName = "Round";
  template <class C>
  C operator()(C x) const {
    return std::nearbyint(x);
  }
};

struct Exp : FloatFunction<kMathGrain> {
  static constexpr const char* kName = "Exp";
  float operator()(float x) const { return math::Exp(x); }
  double operator()(double x) const { return std::exp(x); }
};
struct Log : FloatFunction<kMathGrain> {
  static constexpr const char* kName = "Log";
  float operator()(float x) const { return math::Log(x); }
  double operator()(double x) const { return std::log(x); }
};
struct Erf : FloatFunction<kMathGrain> {
  static constexpr const char* kName = "Erf";
  float operator()(float x) const { return math::Erf(x); }
  double operator()(double x) const { return std::erf(x); }
};
struct Sin : FloatFunction<kMathGrain> {
  static constexpr const char* kName = "Sin";
  double operator()(double x) const { return std::sin(x); }
  float operator()(float x) const { return std::sin(x); }
  void Row(const float* x, float* y, int64_t n) const { math::SinRow(x, y, n); }
};
struct Cos : FloatFunction<kMathGrain> {
  static constexpr const char* kName = "Cos";
  double operator()(double x) const { return std::cos(x); }
  float operator()(float x) const { return std::cos(x); }
  void Row(const float* x, float* y, int64_t n) const { math::CosRow(x, y, n); }
};

NPU_ONNX_KERNEL(ForShapes(UnaryDef<Neg>(6, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(UnaryDef<Abs>(6, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(UnaryDef<Sign>(9, 13, "input", "output"));
NPU_ONNX_KERNEL(ForShapes(UnaryDef<Sqrt>(6, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(UnaryDef<Reciprocal>(6, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(UnaryDef<Floor>(6, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(UnaryDef<Ceil>(6, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(UnaryDef<Round>(11, 22));
NPU_ONNX_KERNEL(UnaryDef<Exp>(6, 13, "input", "output"));
NPU_ONNX_KERNEL(UnaryDef<Log>(6, 13, "input", "output"));
NPU_ONNX_KERNEL(UnaryDef<Erf>(9, 13, "input", "output"));
NPU_ONNX_KERNEL(UnaryDef<Sin>(7, 22, "input", "output"));
NPU_ONNX_KERNEL(UnaryDef<Cos>(7, 22, "input", "output"));

}  // namespace
}  // namespace npu
