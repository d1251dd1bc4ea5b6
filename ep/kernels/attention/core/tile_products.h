// The two matmuls of attention in tile registers (AMX), for tile_panel.h: pairs of 16-bit floats, sums in float32.
//
// In both, the panel's queries run along the rows of 16 floats of a result, so that scores are [key][query] and sums
// [column][query]: the layouts that the vector code between the matmuls uses. Keys and values pass by the L1 cache,
// where queries, scores and weights stay.
#pragma once

#include <cstdint>

#include "ep/kernels/amx_tiles.h"
#include "ep/kernels/attention/core/panel_buffers.h"
#include "ep/kernels/attention/core/simd.h"

namespace npu::attention {

struct TileScope {
  amx::Scope tiles;
  FlushedDenormals denormals;
};

// Products that are computed step by step, four tile products each, while the vector unit works on something else: the
// scores of the next kTileKeys keys, and sums of values. Nothing else may use the tiles before Finish. Put
// amx::CompilerBarrier() between steps and other accesses to the operands.
template <class Dot, int kVectors>
class TileProducts {
  using Block = amx::Sums<2, kVectors>;
  static constexpr int64_t kWidth = kVectors * kLanes, kRowBytes = kWidth * 4, kStepWords = 16;

 public:
  // `spare` is a block of memory that is written and never read.
  explicit TileProducts(float* spare) : spare_(spare), before_(spare) {}

  // scores[key][query] of kTileKeys keys. keys: [key][key_stride] words; queries: [words][query], a multiple of 16
  // words.
  void TakeScores(const float* keys, int64_t key_stride, const float* queries, int64_t words, float* scores) {
    keys_ = keys;
    queries_ = queries;
    scores_ = scores;
    key_stride_ = key_stride;
    score_words_ = words;
    score_word_ = 0;
  }
  int64_t score_steps() const { return (score_words_ - score_word_) / kStepWords; }

  // sums[column][query] += columns[column][pair of keys] · weights[pair of keys][query], for multiples of kTileKeys
  // columns and of 16 pairs.
  void TakeSums(const float* columns, int64_t column_stride, int64_t count, const float* weights, int64_t pairs,
                float* sums) {
    columns_ = columns;
    weights_ = weights;
    sums_ = sums;
    column_stride_ = column_stride;
    pairs_ = pairs;
    pair_ = 0;
    sum_steps_ = pairs > 0 ? count / kTileKeys * (pairs / kStepWords) : 0;
  }
  int64_t sum_steps() const { return sum_steps_; }

  // The next step of scores, or of sums when all scores are computed. There must be one.
  NPU_SIMD_INLINE void Step() { score_word_ < score_words_ ? ScoreStep() : SumStep(); }

  // Computes and stores the scores that are left.
  void FinishScores() {
    amx::CompilerBarrier();
    while (score_word_ < score_words_) ScoreStep();
    if (before_ == scores_) StoreTiles();
    amx::CompilerBarrier();
  }
  void Finish() {
    FinishScores();
    while (sum_steps_ > 0) SumStep();
    StoreTiles();
    amx::CompilerBarrier();
  }

 private:
  void StoreTiles() {
    if (before_ != spare_) Block::StoreTo(before_, kRowBytes);
    before_ = spare_;
  }

  NPU_SIMD_INLINE void ScoreStep() {
    const auto* keys = reinterpret_cast<const char*>(keys_ + score_word_);
    const auto* queries = reinterpret_cast<const char*>(queries_ + score_word_ * kWidth);
    if (score_word_ == 0) {
      Block::template AddFirst<Dot, /*kFromMemory=*/false>(before_, nullptr, kRowBytes, keys, key_stride_ * 4, queries,
                                                           kRowBytes);
      before_ = scores_;
    } else {
      Block::template Add<Dot>(keys, key_stride_ * 4, queries, kRowBytes);
    }
    score_word_ += kStepWords;
  }

  NPU_SIMD_INLINE void SumStep() {
    const auto* columns = reinterpret_cast<const char*>(columns_ + pair_);
    const auto* weights = reinterpret_cast<const char*>(weights_ + pair_ * kWidth);
    if (before_ != sums_) {  // a new block, or scores have come between
      Block::template AddFirst<Dot, /*kFromMemory=*/true>(before_, sums_, kRowBytes, columns, column_stride_ * 4,
                                                          weights, kRowBytes);
      before_ = sums_;
    } else {
      Block::template Add<Dot>(columns, column_stride_ * 4, weights, kRowBytes);
    }
    --sum_steps_;
    pair_ += kStepWords;
    if (pair_ < pairs_) return;
    pair_ = 0;
    columns_ += kTileKeys * column_stride_;
    sums_ += kTileKeys * kWidth;
  }

  float* spare_;
  float* before_;  // where the sums in the tiles belong; `spare_`: nowhere
  const float *keys_ = nullptr, *queries_ = nullptr;
  float* scores_ = nullptr;
  int64_t key_stride_ = 0, score_words_ = 0, score_word_ = 0;
  const float *columns_ = nullptr, *weights_ = nullptr;
  float* sums_ = nullptr;
  int64_t column_stride_ = 0, pairs_ = 0, pair_ = 0, sum_steps_ = 0;
};

}  // namespace npu::attention
