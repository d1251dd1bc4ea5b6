#include "ep/kernels/elementwise/narrow.h"

#include <array>
#include <cmath>
#include <limits>

#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

// A float with a sign, exponent and `mantissa` bits.
struct Format {
  int bits, mantissa, bias;
  float largest;
  enum class Beyond {  // what the bits say that are no numbers
    kNothing,
    kNan,           // all ones
    kInfinity,      // the highest exponent, with NaNs behind infinity
    kUnsignedZero,  // the bits of -0 are NaN
  } beyond;

  int sign() const { return 1 << (bits - 1); }
};
using Beyond = Format::Beyond;

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return {8, 3, 7, 448.0f, Beyond::kNan};
    case DType::kFloat8E4M3FNUZ:
      return {8, 3, 8, 240.0f, Beyond::kUnsignedZero};
    case DType::kFloat8E5M2:
      return {8, 2, 15, 57344.0f, Beyond::kInfinity};
    case DType::kFloat8E5M2FNUZ:
      return {8, 2, 16, 57344.0f, Beyond::kUnsignedZero};
    default:
      return {4, 1, 1, 6.0f, Beyond::kNothing};
  }
}

float Decode(const Format& f, int code) {
  const int magnitude = code & (f.sign() - 1), exponent = magnitude >> f.mantissa;
  const int fraction = magnitude & ((1 << f.mantissa) - 1);
  const float nan = std::numeric_limits<float>::quiet_NaN(), sign = (code & f.sign()) != 0 ? -1.0f : 1.0f;
  if (f.beyond == Beyond::kUnsignedZero && code == f.sign()) return nan;
  if (f.beyond == Beyond::kInfinity && exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : nan;
  if (f.beyond == Beyond::kNan && magnitude == f.sign() - 1) return nan;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - f.bias - f.mantissa);
  return sign * std::ldexp(static_cast<float>(fraction + (1 << f.mantissa)), exponent - f.bias - f.mantissa);
}

int Encode(const Format& f, bool saturate, float x) {
  const int ones = f.sign() - 1;
  const bool has_nan = f.beyond == Beyond::kNan || f.beyond == Beyond::kInfinity;
  const int nan = has_nan ? ones : f.sign();
  if (x != x) return nan;
  const int sign = std::signbit(x) ? f.sign() : 0;
  const float magnitude = std::fabs(x);
  if (magnitude == 0) return f.beyond == Beyond::kUnsignedZero ? 0 : sign;
  const int exponent = std::isinf(x) ? 127 : std::max(std::ilogb(magnitude), 1 - f.bias);
  // Of infinity, larger than any other.
  const float steps = std::isinf(x) ? 0x1p60f : std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent));
  if (std::ldexp(steps, exponent - f.mantissa) > f.largest) {
    const int infinity = ones & ~((1 << f.mantissa) - 1);
    if (saturate || f.beyond == Beyond::kNothing) {
      if (f.beyond == Beyond::kInfinity) return sign | (infinity - 1);
      return sign | (f.beyond == Beyond::kNan ? ones - 1 : ones);
    }
    return f.beyond == Beyond::kInfinity ? sign | infinity : nan;
  }
  const int bits = ((exponent + f.bias) << f.mantissa) + static_cast<int>(steps) - (1 << f.mantissa);
  return f.beyond == Beyond::kUnsignedZero && bits == 0 ? 0 : sign | bits;
}

// Float8e8m0: code c is 2^(c - 127), the last one NaN.
float DecodePower(int code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
}

int EncodePower(const Narrowing& how, float x) {
  constexpr int kNan = 255, kLargest = 254;
  const float magnitude = std::fabs(x);
  if (x != x) return kNan;
  if (magnitude == 0) return how.saturate ? 0 : kNan;
  if (std::isinf(x)) return how.saturate ? kLargest : kNan;
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const bool up = how.power == Narrowing::Power::kUp        ? fraction > 0.5f
                  : how.power == Narrowing::Power::kNearest ? fraction >= 0.75f
                                                            : false;
  const int code = exponent - 1 + 127 + (up ? 1 : 0);
  if (code < 0) return how.saturate ? 0 : kNan;
  if (code > kLargest) return how.saturate ? kLargest : kNan;
  return code;
}

float Value(DType dtype, int code) {
  if (dtype == DType::kFloat8E8M0) return DecodePower(code);
  if (kNarrowFloats.Contains(dtype)) return Decode(FormatOf(dtype), code & ((1 << BitsOf(dtype)) - 1));
  const int size = 1 << BitsOf(dtype), low = code & (size - 1);
  const bool is_signed = dtype == DType::kInt4 || dtype == DType::kInt2;
  return static_cast<float>(is_signed && low >= size / 2 ? low - size : low);
}

constexpr auto kFirstNarrow = static_cast<size_t>(DType::kFloat8E4M3FN);
constexpr auto kLastNarrow = static_cast<size_t>(DType::kInt2);
using Tables = std::array<std::array<float, 256>, kLastNarrow - kFirstNarrow + 1>;

// The values of all codes, by type.
Tables MakeTables() {
  Tables tables;
  for (size_t type = 0; type < tables.size(); ++type)
    for (size_t code = 0; code < 256; ++code)
      tables[type][code] = Value(static_cast<DType>(type + kFirstNarrow), static_cast<int>(code));
  return tables;
}

// f(i, code of element first + i).
template <class F>
void ForEachCode(DType dtype, const void* from, int64_t first, int64_t n, const F& f) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  const int bits = BitsOf(dtype), each = 8 / bits, mask = (1 << bits) - 1;
  for (int64_t i = 0; i < n; ++i) f(i, (bytes[(first + i) / each] >> ((first + i) % each * bits)) & mask);
}

// Stores code(i), which is cut to its size, as element first + i.
template <class F>
void StoreCodes(DType dtype, int64_t first, int64_t n, void* to, const F& code) {
  auto* bytes = static_cast<uint8_t*>(to);
  const int bits = BitsOf(dtype), each = 8 / bits, mask = (1 << bits) - 1;
  for (int64_t i = 0; i < n; i += each) {
    int byte = 0;
    for (int k = 0; k < each && i + k < n; ++k) byte |= (code(i + k) & mask) << (k * bits);
    bytes[(first + i) / each] = static_cast<uint8_t>(byte);
  }
}

}  // namespace

void UpcastNarrow(DType dtype, const void* from, int64_t first, int64_t n, float* to) {
  static const Tables tables = MakeTables();
  const auto& table = tables[static_cast<size_t>(dtype) - kFirstNarrow];
  ForEachCode(dtype, from, first, n, [&](int64_t i, int code) { to[i] = table[static_cast<size_t>(code)]; });
}

void NarrowFloats(DType dtype, Narrowing how, const float* from, int64_t first, int64_t n, void* to) {
  if (dtype == DType::kFloat8E8M0) {
    StoreCodes(dtype, first, n, to, [&](int64_t i) { return EncodePower(how, from[i]); });
  } else if (kNarrowIntegers.Contains(dtype)) {
    StoreCodes(dtype, first, n, to, [&](int64_t i) { return SafeCast<int32_t>(from[i]); });
  } else {
    const Format format = FormatOf(dtype);
    StoreCodes(dtype, first, n, to, [&](int64_t i) { return Encode(format, how.saturate, from[i]); });
  }
}

void UnpackIntegers(DType dtype, const void* from, int64_t first, int64_t n, uint8_t* to) {
  const int bits = BitsOf(dtype);
  const int sign = dtype == DType::kInt4 || dtype == DType::kInt2 ? 1 << (bits - 1) : 0;
  ForEachCode(dtype, from, first, n, [&](int64_t i, int code) { to[i] = static_cast<uint8_t>((code ^ sign) - sign); });
}

void PackIntegers(DType dtype, const uint8_t* from, int64_t first, int64_t n, void* to) {
  StoreCodes(dtype, first, n, to, [&](int64_t i) { return from[i]; });
}

}  // namespace npu
