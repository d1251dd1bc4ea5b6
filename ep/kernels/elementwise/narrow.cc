#include "ep/kernels/elementwise/narrow.h"

#include <array>
#include <cmath>
#include <limits>

#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

// An 8-bit float with a sign, exponent and `mantissa` bits.
struct Format {
  int mantissa, bias;
  float largest;
  bool infinity;       // has infinities, and NaNs beyond them
  bool unsigned_zero;  // has no -0, whose bits are NaN
};

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return {3, 7, 448.0f, false, false};
    case DType::kFloat8E4M3FNUZ:
      return {3, 8, 240.0f, false, true};
    case DType::kFloat8E5M2:
      return {2, 15, 57344.0f, true, false};
    default:
      return {2, 16, 57344.0f, false, true};
  }
}

float Decode(const Format& f, uint8_t bits) {
  const int magnitude = bits & 0x7f, exponent = magnitude >> f.mantissa, fraction = magnitude & ((1 << f.mantissa) - 1);
  const float nan = std::numeric_limits<float>::quiet_NaN(), sign = bits & 0x80 ? -1.0f : 1.0f;
  if (f.unsigned_zero && bits == 0x80) return nan;
  if (f.infinity && exponent == 31) return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : nan;
  if (!f.infinity && !f.unsigned_zero && magnitude == 0x7f) return nan;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - f.bias - f.mantissa);
  return sign * std::ldexp(static_cast<float>(fraction + (1 << f.mantissa)), exponent - f.bias - f.mantissa);
}

std::array<float, 256> TableOf(DType dtype) {
  std::array<float, 256> table{};
  for (int bits = 0; bits < 256; ++bits)
    table[static_cast<size_t>(bits)] = Decode(FormatOf(dtype), static_cast<uint8_t>(bits));
  return table;
}

uint8_t Encode(const Format& f, bool saturate, float x) {
  const auto nan = static_cast<uint8_t>(f.unsigned_zero ? 0x80 : 0x7f);
  if (x != x) return nan;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude == 0) return f.unsigned_zero ? 0 : sign;
  const int exponent = std::isinf(x) ? 127 : std::max(std::ilogb(magnitude), 1 - f.bias);
  // Of infinity, larger than any other.
  const float steps = std::isinf(x) ? 0x1p60f : std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent));
  if (std::ldexp(steps, exponent - f.mantissa) > f.largest) {
    if (!saturate) return f.infinity ? static_cast<uint8_t>(sign | 0x7c) : nan;
    const int largest = f.infinity ? 0x7b : f.unsigned_zero ? 0x7f : 0x7e;
    return static_cast<uint8_t>(sign | largest);
  }
  const int bits = ((exponent + f.bias) << f.mantissa) + static_cast<int>(steps) - (1 << f.mantissa);
  if (f.unsigned_zero && bits == 0) return 0;
  return static_cast<uint8_t>(sign | bits);
}

}  // namespace

void WidenNarrow(DType dtype, const void* from, int64_t first, int64_t n, float* to) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  if (kFloat8.Contains(dtype)) {
    static const std::array<std::array<float, 256>, 4> tables = {
        TableOf(DType::kFloat8E4M3FN), TableOf(DType::kFloat8E4M3FNUZ), TableOf(DType::kFloat8E5M2),
        TableOf(DType::kFloat8E5M2FNUZ)};
    const auto& table = tables[static_cast<size_t>(dtype) - static_cast<size_t>(DType::kFloat8E4M3FN)];
    for (int64_t i = 0; i < n; ++i) to[i] = table[bytes[first + i]];
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int nibble = (bytes[(first + i) / 2] >> ((first + i) % 2 * 4)) & 15;
    to[i] = static_cast<float>(dtype == DType::kInt4 && nibble > 7 ? nibble - 16 : nibble);
  }
}

void NarrowFloats(DType dtype, bool saturate, const float* from, int64_t first, int64_t n, void* to) {
  auto* bytes = static_cast<uint8_t*>(to);
  if (kFloat8.Contains(dtype)) {
    const Format format = FormatOf(dtype);
    for (int64_t i = 0; i < n; ++i) bytes[first + i] = Encode(format, saturate, from[i]);
    return;
  }
  const auto nibble = [&](int64_t i) { return i < n ? SafeCast<int32_t>(from[i]) & 15 : 0; };
  for (int64_t i = 0; i < n; i += 2) bytes[(first + i) / 2] = static_cast<uint8_t>(nibble(i) | nibble(i + 1) << 4);
}

}  // namespace npu
