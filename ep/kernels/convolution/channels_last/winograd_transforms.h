// The transforms of Winograd's minimal filtering F(2 × 2, 3 × 3): of 4 × 4 pixels d, of a kernel g of 3 × 3 taps, and
// of the 4 × 4 sums of their products m to 2 × 2 outputs, A' [(G g G') * (B' d B)] A. Each is applied to lines and then
// to columns.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "ep/kernels/gemm/vector.h"

namespace npu::channels_last::winograd {

inline constexpr int kTile = 4, kPoints = kTile * kTile, kTaps = 9;
inline constexpr int kOutputs = 2;  // of a tile, in each direction

using gemm::kLanes;
using gemm::Vec;
using Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias)) = float;

// B' of four values; V: a vector of floats.
template <class V>
[[gnu::always_inline]] inline void TransformLine(V a, V b, V c, V d, V out[kTile]) {
  out[0] = a - c;
  out[1] = b + c;
  out[2] = c - b;
  out[3] = b - d;
}

// A vector of channels of 4 × 4 pixels: point p of them to `to + p * pitch`.
[[gnu::always_inline]] inline void TransformPixels(const float* const (&pixels)[kPoints], int64_t channel, float* to,
                                                   int64_t pitch) {
  Unaligned lines[kTile][kTile];
#pragma GCC unroll 4
  for (int x = 0; x < kTile; ++x) {
    Unaligned in[kTile], out[kTile];
#pragma GCC unroll 4
    for (int y = 0; y < kTile; ++y) in[y] = *reinterpret_cast<const Unaligned*>(pixels[kTile * y + x] + channel);
    TransformLine(in[0], in[1], in[2], in[3], out);
#pragma GCC unroll 4
    for (int y = 0; y < kTile; ++y) lines[y][x] = out[y];
  }
#pragma GCC unroll 4
  for (int y = 0; y < kTile; ++y) {
    Unaligned out[kTile];
    TransformLine(lines[y][0], lines[y][1], lines[y][2], lines[y][3], out);
#pragma GCC unroll 4
    for (int x = 0; x < kTile; ++x) *reinterpret_cast<Unaligned*>(to + (kTile * y + x) * pitch) = out[x];
  }
}

// A vector of channels of the sums, point p at `sums + p * pitch`, to 2 × 2 outputs.
[[gnu::always_inline]] inline void TransformSums(const float* sums, int64_t pitch, Vec (&out)[kOutputs * kOutputs]) {
  Vec lines[kOutputs][kTile];
#pragma GCC unroll 4
  for (int x = 0; x < kTile; ++x) {
    Vec m[kTile];
#pragma GCC unroll 4
    for (int y = 0; y < kTile; ++y) m[y] = *reinterpret_cast<const Vec*>(sums + (kTile * y + x) * pitch);
    lines[0][x] = m[0] + m[1] + m[2];
    lines[1][x] = m[1] - m[2] - m[3];
  }
#pragma GCC unroll 2
  for (int y = 0; y < kOutputs; ++y) {
    out[kOutputs * y] = lines[y][0] + lines[y][1] + lines[y][2];
    out[kOutputs * y + 1] = lines[y][1] - lines[y][2] - lines[y][3];
  }
}

// Point p of the 3 × 3 taps of one kernel to `to + p * pitch`, each rounded once. Taps of which a point would not be
// finite are stored themselves, and no number as the last point: then no result is finite either.
inline void TransformTaps(const float* taps, float* to, int64_t pitch) {
  double lines[kTile][3];
  const auto transform = [](double a, double b, double c, auto&& write) {
    write(0, a);
    write(1, (a + b + c) / 2);
    write(2, (a - b + c) / 2);
    write(3, c);
  };
  for (int x = 0; x < 3; ++x)
    transform(taps[x], taps[3 + x], taps[6 + x], [&](int y, double value) { lines[y][x] = value; });
  bool finite = true;
  for (int y = 0; y < kTile; ++y) {
    transform(lines[y][0], lines[y][1], lines[y][2], [&](int x, double value) {
      const float point = static_cast<float>(value);
      finite = finite && std::isfinite(point);
      to[(kTile * y + x) * pitch] = point;
    });
  }
  if (finite) return;
  for (int t = 0; t < kTaps; ++t) to[t * pitch] = taps[t];
  to[(kPoints - 1) * pitch] = std::numeric_limits<float>::quiet_NaN();
}

// The taps that became the points u, but for rounding.
inline void RestoreTaps(const Vec (&u)[kPoints], Vec (&taps)[kTaps]) {
  Vec lines[kTile][3];
  for (int y = 0; y < kTile; ++y) {
    lines[y][0] = u[kTile * y];
    lines[y][1] = u[kTile * y + 1] - u[kTile * y + 2];
    lines[y][2] = u[kTile * y + 3];
  }
  for (int x = 0; x < 3; ++x) {
    taps[x] = lines[0][x];
    taps[3 + x] = lines[1][x] - lines[2][x];
    taps[6 + x] = lines[3][x];
  }
  const Vec& last = u[kPoints - 1];
  for (int t = 0; t < kTaps; ++t) taps[t] = last == last ? taps[t] : u[t];
}

}  // namespace npu::channels_last::winograd
