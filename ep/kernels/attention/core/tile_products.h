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

struct TileScope {
  amx::Scope tiles;
  FlushedDenormals denormals;
};

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

// sums[column][query] += columns[column][pair of keys] · weights[pair of keys][query], step by step as well, for a
// multiple of 16 columns and of pairs.
template <class Dot, int kVectors>
class TileSums {
  static constexpr int64_t kWidth = kVectors * 16, kRowBytes = kWidth * 4, kStepWords = 16, kBlock = 32;

 public:
  TileSums() = default;  // of no columns
  TileSums(const float* columns, int64_t column_stride, int64_t count, const float* weights, int64_t pairs, float* sums)
      : columns_(columns), weights_(weights), sums_(sums), column_stride_(column_stride), pairs_(pairs), left_(count) {
    amx::CompilerBarrier();
  }

  int64_t steps() const { return (left_ + kBlock - 1) / kBlock * (pairs_ / kStepWords); }
  bool done() const { return left_ <= 0; }

  NPU_SIMD_INLINE void Step() { left_ >= kBlock ? StepOf<2>() : StepOf<1>(); }

 private:
  template <int kRowTiles>
  NPU_SIMD_INLINE void StepOf() {
    using Block = amx::Sums<kRowTiles, kVectors>;
    if (word_ == 0) Block::LoadFrom(sums_, kRowBytes);
    Block::template Add<Dot, /*kStreamLeft=*/false, /*kStreamRight=*/false>(
        reinterpret_cast<const char*>(columns_ + word_), column_stride_ * 4,
        reinterpret_cast<const char*>(weights_ + word_ * kWidth), kRowBytes);
    word_ += kStepWords;
    if (word_ < pairs_) return;
    Block::StoreTo(sums_, kRowBytes);
    word_ = 0;
    columns_ += kBlock * column_stride_;
    sums_ += kBlock * kWidth;
    left_ -= kBlock;
  }

  const float *columns_ = nullptr, *weights_ = nullptr;
  float* sums_ = nullptr;
  int64_t column_stride_ = 0, pairs_ = 0, left_ = 0, word_ = 0;
};

// What the tile unit computes while the vector unit works on the weights of a panel: the sums of the panel before, then
// the scores of the panel after.
template <class Dot, int kVectors>
class TileProducts {
 public:
  void Take(const TileSums<Dot, kVectors>& sums) { sums_ = sums; }
  void Take(const TileScores<Dot, kVectors>& scores) { scores_ = scores; }

  int64_t steps() const { return sums_.steps() + scores_.steps(); }
  // Called: inlined, its state would take the registers of the code around it.
  [[gnu::noinline]] void Step() { sums_.done() ? scores_.Step() : sums_.Step(); }
  void Finish() {
    while (!sums_.done()) sums_.Step();
    scores_.Finish();
  }

 private:
  TileSums<Dot, kVectors> sums_;
  TileScores<Dot, kVectors> scores_;
};

#else

struct TileScope {};
template <class Dot, int kVectors>
class TileProducts;

#endif

}  // namespace npu::attention
