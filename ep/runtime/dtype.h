// Element types, with the values of ONNX TensorProto.DataType, so that they cross the onnxruntime and Python boundaries
// unchanged.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

#include "ep/runtime/error.h"

namespace npu {

enum class DType : int32_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUInt4 = 21,
  kInt4 = 22,
  kFloat4E2M1 = 23,
  kFloat8E8M0 = 24,  // a power of two without a sign: the scales of microscaling formats
  kUInt2 = 25,
  kInt2 = 26,
};

// Bits of one element; 4 and 2 for types that share bytes, 0 for strings and undefined.
int BitsOf(DType dtype);
const char* NameOf(DType dtype);          // "float32", "bfloat16", ...
DType DTypeFromName(const std::string&);  // throws on an unknown name
// Bytes of `elements` packed elements; throws when they cannot be addressed, so that a hostile shape
// never becomes a small allocation.
inline size_t BytesFor(DType dtype, int64_t elements) {
  size_t bits = 0;
  if (elements < 0 ||
      __builtin_mul_overflow(static_cast<size_t>(elements), static_cast<size_t>(BitsOf(dtype)), &bits) ||
      bits > SIZE_MAX - 7) [[unlikely]]
    Fail(ErrorCode::kInvalidArgument, "expected a tensor that fits the address space, got ", elements, " elements of ",
         NameOf(dtype));
  return (bits + 7) / 8;
}
inline bool IsFloating(DType d) {
  return d == DType::kFloat32 || d == DType::kFloat16 || d == DType::kBFloat16 || d == DType::kFloat64;
}

// A set of element types, as a bit mask over the values above.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (DType d : dtypes) bits_ |= Bit(d);
  }
  static constexpr DTypeSet FromBits(uint64_t bits) {
    DTypeSet s;
    s.bits_ = bits;
    return s;
  }
  constexpr bool Contains(DType d) const { return (bits_ & Bit(d)) != 0; }
  constexpr bool Empty() const { return bits_ == 0; }
  constexpr uint64_t bits() const { return bits_; }
  constexpr DTypeSet operator|(DTypeSet o) const { return FromBits(bits_ | o.bits_); }
  std::string ToString() const;  // "float32, float16"

 private:
  static constexpr uint64_t Bit(DType d) { return uint64_t{1} << static_cast<int>(d); }
  uint64_t bits_ = 0;
};

inline constexpr DTypeSet kFloats{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
inline constexpr DTypeSet kIndices{DType::kInt32, DType::kInt64};
inline constexpr DTypeSet kSignedInts{DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64};
inline constexpr DTypeSet kUnsignedInts{DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};
inline constexpr DTypeSet kIntegers = kSignedInts | kUnsignedInts;
inline constexpr DTypeSet kNumeric = kFloats | kIntegers | DTypeSet{DType::kFloat64};
inline constexpr DTypeSet kFixedWidth = kNumeric | DTypeSet{DType::kBool};  // every type that kernels move by the byte

// 16-bit floats: storage types. Arithmetic is done in float.
struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40);  // keep NaN a NaN
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);  // nearest even
    }
  }
  explicit operator float() const {
    uint32_t u = static_cast<uint32_t>(bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};
// The conversions are branch-free integer code, because gcc vectorises that at every ISA level while
// it leaves _Float16 casts scalar.
struct Float16 {
  uint16_t bits;
  Float16() = default;
  explicit Float16(float f) {  // nearest even, overflow to infinity
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 lets the FPU round at bit 2^-24, the subnormals' last place.
    const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    uint32_t half = magnitude < 0x38800000u ? tiny : normal;  // below 2^-14
    half = magnitude >= 0x47800000u ? special : half;  // 65536 and above; 65520… round up to infinity by themselves
    bits = static_cast<uint16_t>(((u >> 16) & 0x8000u) | half);
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    const uint32_t normal = magnitude + (112u << 23);
    const uint32_t special = magnitude | 0x7f800000u | (magnitude > (0x7c00u << 13) ? 0x400000u : 0u);
    // 0.5 + m·2^-24 is exact, and so is subtracting the 0.5.
    const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>((126u << 23) | (magnitude >> 13)) - 0.5f);
    uint32_t wide = magnitude < (0x0400u << 13) ? tiny : normal;
    wide = magnitude >= (0x7c00u << 13) ? special : wide;
    return std::bit_cast<float>(sign | wide);
  }
};

template <class T>
struct DTypeOf;
#define NPU_DTYPE_OF(T, D)                   \
  template <>                                \
  struct DTypeOf<T> {                        \
    static constexpr DType value = DType::D; \
  }
NPU_DTYPE_OF(float, kFloat32);
NPU_DTYPE_OF(double, kFloat64);
NPU_DTYPE_OF(Float16, kFloat16);
NPU_DTYPE_OF(BFloat16, kBFloat16);
NPU_DTYPE_OF(int8_t, kInt8);
NPU_DTYPE_OF(int16_t, kInt16);
NPU_DTYPE_OF(int32_t, kInt32);
NPU_DTYPE_OF(int64_t, kInt64);
NPU_DTYPE_OF(uint8_t, kUInt8);
NPU_DTYPE_OF(uint16_t, kUInt16);
NPU_DTYPE_OF(uint32_t, kUInt32);
NPU_DTYPE_OF(uint64_t, kUInt64);
NPU_DTYPE_OF(bool, kBool);
#undef NPU_DTYPE_OF

// Calls f(T{}) with the C++ type of `dtype`; `op` names the operator in the error.
template <class F>
decltype(auto) DispatchFloats(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
    default:
      Fail(ErrorCode::kInvalidArgument, "[", op, "] expected float32, float16 or bfloat16, got ", NameOf(dtype));
  }
}

}  // namespace npu
