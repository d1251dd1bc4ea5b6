// The two matmuls of attention in tile registers (AMX), for panel.h: pairs of 16-bit floats, sums in float32.
//
// In both, the panel's queries run along the rows of 16 floats of a result, so that scores are [key][query] and sums
// [column][query]: the layouts that the vector code between the matmuls uses.
#pragma once

#include <cstdint>

#include "ep/kernels/attention/core/simd.h"

#if defined(__AVX512F__)
#include "ep/kernels/amx_tiles.h"
#endif

namespace npu::attention {

inline constexpr int kTileKeys = 32;  // per step along the keys, i.e. 16 pairs

#if defined(__AVX512F__)

using TileScope = amx::Scope;

namespace internal {

// result[32 or 16][kVectors * 16] (+)= left · right over `words` pairs, a multiple of 16: left is [row][word],
// right [word][query].
template <class Dot, int kRowTiles, int kVectors, bool kAccumulate>
void TileProduct(const float* left, int64_t left_stride, const float* right, int64_t words, float* result) {
  using Block = amx::Sums<kRowTiles, kVectors>;
  constexpr int64_t kWidth = kVectors * 16, kRowBytes = kWidth * 4;
  if constexpr (kAccumulate) {
    Block::LoadFrom(result, kRowBytes);
  } else {
    Block::Clear();
  }
  for (int64_t word = 0; word < words; word += 16) {
    Block::template Add<Dot, /*kStreamLeft=*/false, /*kStreamRight=*/false>(
        reinterpret_cast<const char*>(left + word), left_stride * 4,
        reinterpret_cast<const char*>(right + word * kWidth), kRowBytes);
  }
  Block::StoreTo(result, kRowBytes);
}

}  // namespace internal

// scores[key][query] of the keys [from, to), both multiples of kTileKeys. keys: [key][key_stride] words;
// queries: [words][query].
template <class Dot, int kVectors>
void TileScores(const float* keys, int64_t key_stride, const float* queries, int64_t words, int64_t from, int64_t to,
                float* scores) {
  amx::CompilerBarrier();
  for (int64_t key = from; key < to; key += kTileKeys) {
    internal::TileProduct<Dot, 2, kVectors, false>(keys + key * key_stride, key_stride, queries, words,
                                                   scores + key * kVectors * 16);
  }
  amx::CompilerBarrier();
}

// sums[column][query] += columns[column][pair of keys] · weights[pair of keys][query], for a multiple of 16 columns and
// of pairs.
template <class Dot, int kVectors>
void TileSums(const float* columns, int64_t column_stride, int64_t count, const float* weights, int64_t pairs,
              float* sums) {
  amx::CompilerBarrier();
  for (int64_t d = 0; d < count; d += 32) {
    const float* left = columns + d * column_stride;
    float* result = sums + d * kVectors * 16;
    if (count - d >= 32) {
      internal::TileProduct<Dot, 2, kVectors, true>(left, column_stride, weights, pairs, result);
    } else {
      internal::TileProduct<Dot, 1, kVectors, true>(left, column_stride, weights, pairs, result);
    }
  }
  amx::CompilerBarrier();
}

#else

struct TileScope {};

#endif

}  // namespace npu::attention
