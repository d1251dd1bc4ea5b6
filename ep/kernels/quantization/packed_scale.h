// The 64-bit form in which integer matmuls take a scale: npu_trans_quant_param makes it.
//
//   bits 0..31    a float32 of 19 significant bits: 1 sign, 8 exponent, 10 mantissa, the low 13 bits zero
//   bits 37..45   an offset, signed, if there is one
//   bit  46       set
#pragma once

#include <bit>
#include <cstdint>

namespace npu {

inline constexpr int64_t kPackedScaleMark = int64_t{1} << 46;
inline constexpr int kPackedOffsetShift = 37;

// A float32 cut to 10 bits of mantissa, or rounded to them, half to even. NaN stays NaN.
inline uint32_t Float19Bits(float value, bool round) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits | 0x00400000u) & 0xffffe000u;
  if (round) bits += 0xfffu + ((bits >> 13) & 1u);
  return bits & 0xffffe000u;
}

inline int64_t PackScale(float scale, bool round) {
  return kPackedScaleMark | static_cast<int64_t>(Float19Bits(scale, round));
}

// The offset is an integer in [-256, 255].
inline int64_t PackScale(float scale, bool round, int32_t offset) {
  return PackScale(scale, round) | static_cast<int64_t>(offset & 0x1ff) << kPackedOffsetShift;
}

// Ignores bits that packing clears.
inline float UnpackScale(int64_t packed) { return std::bit_cast<float>(static_cast<uint32_t>(packed) & 0xffffe000u); }

inline int32_t UnpackOffset(int64_t packed) {
  return static_cast<int32_t>(((packed >> kPackedOffsetShift) & 0x1ff) ^ 0x100) - 0x100;
}

}  // namespace npu
