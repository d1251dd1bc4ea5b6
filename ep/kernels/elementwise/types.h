// The element types of the standard operators and how arithmetic treats each: 16-bit floats are
// computed in float and rounded once, bool is a byte that may hold any non-zero value for true.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ep/kernels/convert.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr DTypeSet kFloat64{DType::kFloat64};
inline constexpr DTypeSet kBool{DType::kBool};
inline constexpr DTypeSet kInt64{DType::kInt64};
inline constexpr DTypeSet kAllFloats = kFloats | kFloat64;
// Of operators that ONNX has not extended to bfloat16.
inline constexpr DTypeSet kWithoutBFloat16 =
    kIntegers | DTypeSet{DType::kFloat32, DType::kFloat16, DType::kFloat64, DType::kBool};

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// An element of type bool.
struct Truth {
  uint8_t byte;
  operator bool() const { return byte != 0; }  // NOLINT: it is one
};
template <>
struct DTypeOf<Truth> {
  static constexpr DType value = DType::kBool;
};

// What T is computed in.
template <class T>
using ComputeType = std::conditional_t<kIsHalf<T>, float, T>;

// A list of element types to instantiate a row function for.
template <class... Ts>
struct Types {};
using FloatTypes = Types<float, Float16, BFloat16, double>;
using SignedTypes = Types<float, Float16, BFloat16, double, int8_t, int16_t, int32_t, int64_t>;
using NumericTypes =
    Types<float, Float16, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;
using IntegerTypes = Types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;

// f(T{}) for the type of the list that `dtype` names; `op` names the operator in the error.
template <class F, class First, class... Rest>
decltype(auto) DispatchTypes(const char* op, DType dtype, Types<First, Rest...>, const F& f) {
  if constexpr (sizeof...(Rest) == 0) {
    if (dtype != DTypeOf<First>::value) {
      Fail(ErrorCode::kInvalidArgument, "[", op, "] expected a type that the operator takes, got ", NameOf(dtype));
    }
    return f(First{});
  } else {
    if (dtype == DTypeOf<First>::value) return f(First{});
    return DispatchTypes(op, dtype, Types<Rest...>{}, f);
  }
}

template <class... Ts>
constexpr DTypeSet SetOf(Types<Ts...>) {
  return DTypeSet{DTypeOf<Ts>::value...};
}

// f(U{}) with the unsigned integer of `bytes` bytes: operators that only move elements need no more.
template <class F>
decltype(auto) DispatchSize(int bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      Fail(ErrorCode::kUnsupported, "expected elements of 1, 2, 4 or 8 bytes, got ", bytes);
  }
}

inline constexpr int64_t kCheapGrain = 32768;  // elements that are worth a thread, for a few cycles each
inline constexpr int64_t kMathGrain = 4096;    // ... for a function's worth of cycles each

// The type in which T's arithmetic wraps without undefined behaviour, as integers of ONNX and NumPy do; of a float, T.
template <class T, bool = std::is_integral_v<T>>
struct WrappingType {
  using type = std::make_unsigned_t<T>;
};
template <class T>
struct WrappingType<T, false> {
  using type = T;
};
template <class T>
using Wrapping = typename WrappingType<T>::type;

// What x + y, x - y, x * y and -x of integers wrap in, once the result is cut to their size again; of floats, x itself.
// All of uint64_t, because a product of two uint16_t would be computed in, and overflow, int.
template <class C>
auto Modular(C x) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<uint64_t>(x);
  } else {
    return x;
  }
}

}  // namespace npu
