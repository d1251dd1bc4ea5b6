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

// scores[key][query] of the keys [from, to), both multiples of kTileKeys, step by step: while the vector unit works on
// scores that are there, the tile unit computes the next ones. Nothing else may use the tiles before Finish.
// keys: [key][key_stride] words; queries: [words][query], a multiple of 16 words.
template <class Dot, int kVectors>
class TileScores {
  using Block = amx::Sums<2, kVectors>;
  static constexpr int64_t kWidth = kVectors * 16, kRowBytes = kWidth * 4, kStepWords = 16;

 public:
  TileScores() = default;  // of no keys
  TileScores(const float* keys, int64_t key_stride, const float* queries, int64_t words, int64_t from, int64_t to,
             float* scores)
      : keys_(keys), queries_(queries), scores_(scores), key_stride_(key_stride), words_(words), key_(from), to_(to) {
    amx::CompilerBarrier();
  }

  int64_t steps() const { return (to_ - key_) / kTileKeys * (words_ / kStepWords); }

  NPU_SIMD_INLINE void Step() {
    if (key_ >= to_) return;
    if (word_ == 0) Block::Clear();
    Block::template Add<Dot, /*kStreamLeft=*/false, /*kStreamRight=*/false>(
        reinterpret_cast<const char*>(keys_ + key_ * key_stride_ + word_), key_stride_ * 4,
        reinterpret_cast<const char*>(queries_ + word_ * kWidth), kRowBytes);
    word_ += kStepWords;
    if (word_ < words_) return;
    Block::StoreTo(scores_ + key_ * kWidth, kRowBytes);
    word_ = 0;
    key_ += kTileKeys;
  }

  void Finish() {
    while (key_ < to_) Step();
    amx::CompilerBarrier();
  }

 private:
  const float *keys_ = nullptr, *queries_ = nullptr;
  float* scores_ = nullptr;
  int64_t key_stride_ = 0, words_ = 0, key_ = 0, to_ = 0, word_ = 0;
};

namespace internal {

// result[32 or 16][kVectors * 16] += left · right over `words` pairs, a multiple of 16: left is [row][word],
// right [word][query].
template <class Dot, int kRowTiles, int kVectors>
void AddTileProduct(const float* left, int64_t left_stride, const float* right, int64_t words, float* result) {
  using Block = amx::Sums<kRowTiles, kVectors>;
  constexpr int64_t kWidth = kVectors * 16, kRowBytes = kWidth * 4;
  Block::LoadFrom(result, kRowBytes);
  for (int64_t word = 0; word < words; word += 16) {
    Block::template Add<Dot, /*kStreamLeft=*/false, /*kStreamRight=*/false>(
        reinterpret_cast<const char*>(left + word), left_stride * 4,
        reinterpret_cast<const char*>(right + word * kWidth), kRowBytes);
  }
  Block::StoreTo(result, kRowBytes);
}

}  // namespace internal

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
      internal::AddTileProduct<Dot, 2, kVectors>(left, column_stride, weights, pairs, result);
    } else {
      internal::AddTileProduct<Dot, 1, kVectors>(left, column_stride, weights, pairs, result);
    }
  }
  amx::CompilerBarrier();
}

#else

struct TileScope {};
template <class Dot, int kVectors>
class TileScores;

#endif

}  // namespace npu::attention
