// The extremes of rows, from which dynamic quantisation takes its scales. NaN among the values gives NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace npu {

// Magnitudes as bits order as unsigned integers do, NaN above infinity.
inline uint32_t MagnitudeBits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

inline uint32_t MaxMagnitudeBits(const float* x, int64_t n, uint32_t start) {
  uint32_t most = start;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = MagnitudeBits(x[i]);
    most = bits > most ? bits : most;
  }
  return most;
}

struct Extremes {
  float low = std::numeric_limits<float>::infinity();
  float high = -std::numeric_limits<float>::infinity();
  uint32_t magnitude = 0;  // above infinity's where there was a NaN

  void Add(const float* x, int64_t n) {
    float lowest = low, highest = high;
#pragma omp simd reduction(min : lowest) reduction(max : highest)
    for (int64_t i = 0; i < n; ++i) {
      lowest = x[i] < lowest ? x[i] : lowest;
      highest = x[i] > highest ? x[i] : highest;
    }
    low = lowest;
    high = highest;
    magnitude = MaxMagnitudeBits(x, n, magnitude);
  }
  void Add(const Extremes& other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
    magnitude = std::max(magnitude, other.magnitude);
  }
};

}  // namespace npu
