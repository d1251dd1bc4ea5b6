// Integers that order as floats do, so that selection has a total order: NaN is the maximum, and both zeros are equal.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace npu {

inline constexpr int32_t kNanKey = std::numeric_limits<int32_t>::max();

inline int32_t OrderedKey(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x + 0.0f);
  const int32_t key = bits < 0 ? bits ^ 0x7fffffff : bits;
  return x == x ? key : kNanKey;
}

// The float of a key that is not NaN's.
inline float FloatOfKey(int32_t key) { return std::bit_cast<float>(key < 0 ? key ^ 0x7fffffff : key); }

}  // namespace npu
