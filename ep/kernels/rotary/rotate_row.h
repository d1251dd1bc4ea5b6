// Rotary position embedding of one row.
#pragma once

#include <cstdint>

namespace npu {

// Which elements of a row of d form the pair i: (i, i + d/2) or (2i, 2i + 1).
enum class Pairing { kHalves, kNeighbours };

// Rotates every pair (a, b) of x into (a cos - b sin, b cos + a sin), with the tables read at the pair's position in y.
// If kIn and kOut differ, the row is also rearranged; y may be x only if they are equal. d is even.
template <Pairing kIn, Pairing kOut>
void RotateRow(const float* x, const float* cos, const float* sin, float* y, int64_t d) {
  const int64_t half = d / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const int64_t in_a = kIn == Pairing::kHalves ? i : 2 * i, in_b = kIn == Pairing::kHalves ? i + half : 2 * i + 1;
    const int64_t out_a = kOut == Pairing::kHalves ? i : 2 * i, out_b = kOut == Pairing::kHalves ? i + half : 2 * i + 1;
    const float a = x[in_a], b = x[in_b];
    y[out_a] = a * cos[out_a] - b * sin[out_a];
    y[out_b] = b * cos[out_b] + a * sin[out_b];
  }
}

}  // namespace npu
