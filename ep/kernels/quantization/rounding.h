// Rounding half to even at every instruction-set level, in plain loops that vectorise.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace npu {

// Like std::rint in the default mode, infinities and NaN included; -0 may become 0.
inline float RoundHalfEven(float x) {
  // From 2^23 on floats are integers; below, adding it leaves no room for a fraction.
  const float shift = std::copysign(0x1p23f, x);
  const float rounded = (x + shift) - shift;
  return std::abs(x) < 0x1p23f ? rounded : x;
}

// x rounded half to even and saturated to [low, high], which are integers within 2^22; NaN becomes 0.
inline int32_t RoundSaturated(float x, float low, float high) {
  float clamped = x == x ? x : 0.0f;
  clamped = clamped < low ? low : clamped;
  clamped = clamped > high ? high : clamped;
  // 1.5 * 2^23 moves the integer into the low bits of the mantissa.
  return static_cast<int32_t>(std::bit_cast<uint32_t>(clamped + 0x1.8p23f) - std::bit_cast<uint32_t>(0x1.8p23f));
}

// x, an integer or beyond 2^23, saturated to int32; NaN becomes 0.
inline int32_t SaturateToInt32(float x) {
  float within = x == x ? x : 0.0f;
  within = within < -0x1p31f ? -0x1p31f : within;
  within = within > 0x1.fffffep30f ? 0x1.fffffep30f : within;
  return x >= 0x1p31f ? INT32_MAX : static_cast<int32_t>(within);
}

}  // namespace npu
