// Computes an Item of few rows: decode. Vectors run along the head size; each key and value is read once for all rows,
// directly from the cache if its storage type is the one computed with.
#pragma once

#include <cmath>

#include "ep/kernels/attention/core/narrow_pairs.h"
#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

// Keys of type T, multiplied as floats.
template <class T>
struct NarrowFloat {
  using Storage = T;
  using Query = float;
  using Register = Vec;
  static constexpr int kStep = kLanes;   // elements of one register
  static constexpr bool kPairs = false;  // by narrow_pairs.h
  template <class U>
  NPU_SIMD_INLINE static Vec LoadStep(const U* p) {
    return LoadFloats(p);
  }
  NPU_SIMD_INLINE static void MultiplyAdd(Vec& sum, Vec a, Vec b) { sum += a * b; }
};

template <class Math>
struct NarrowBuffers {
  static constexpr int64_t kKeyBlock = 128;
  static constexpr int64_t kScoreStride = kKeyBlock + kLanes;  // groups of keys may extend past the end of a block

  NarrowBuffers(const Problem& p, void* scratch) : carver(scratch) {
    key_stride = RoundUp(p.head_size + p.rope_size, Math::kStep);
    value_stride = RoundUp(p.value_size, kLanes);
    queries = carver.Take<typename Math::Query>(kNarrowRows * key_stride);
    keys = carver.Take<typename Math::Storage>(kKeyBlock * key_stride);
    values = carver.Take<typename Math::Storage>(kKeyBlock * value_stride);
    scores = carver.Take<float>(kNarrowRows * kScoreStride);
    if constexpr (Math::kPairs) spread = carver.Take<float>(kNarrowRows * 2 * key_stride);
    if constexpr (Math::kPairs) weights = carver.Take<BFloat16>(kNarrowRows * kScoreStride);
    bias = carver.Take<float>(kKeyBlock);
    sums = carver.Take<float>(kNarrowRows * value_stride);
  }
  Carver carver;
  int64_t key_stride, value_stride;  // of the padded copies; queries and sums have the same
  typename Math::Query* queries;
  typename Math::Storage *keys, *values;
  float* spread = nullptr;      // queries for ScoreEightKeys
  BFloat16* weights = nullptr;  // the scores' weights, rounded
  float *scores, *bias, *sums;
};

// Rows that are read next, prefetched during the multiplications so that memory is never idle: at the pace at which
// rows are read, since the processor drops prefetches that its queues have no room for. Into the L2 cache: lines on
// their way to L1 would occupy the L1 fill buffers that loads need.
class RowsAhead {
 public:
  RowsAhead() = default;
  // Null rows: prefetches nothing.
  template <class T>
  RowsAhead(const T* rows, int64_t row_stride, int64_t columns, int64_t count)
      : row_(reinterpret_cast<const char*>(rows)),
        stride_(row_stride * static_cast<int64_t>(sizeof(T))),
        lines_((columns * static_cast<int64_t>(sizeof(T)) + 63) / 64),
        left_(rows == nullptr ? 0 : count) {}
  // Instead of those of rows, as many lines of `from`.
  template <class T>
  static RowsAhead Of(LinesAhead* from, int64_t columns, int64_t count) {
    RowsAhead ahead(static_cast<const T*>(nullptr), 0, columns, 0);
    ahead.from_ = from;
    ahead.left_ = count;
    return ahead;
  }
  // Each row is due with so much work.
  void SetPace(int64_t work) { pace_ = work; }
  NPU_SIMD_INLINE void Work(int64_t work) {
    due_ += work;
    for (; due_ > 0 && left_ > 0; due_ -= pace_) PrefetchRow();
  }
  void PrefetchAll() {
    while (left_ > 0) PrefetchRow();
  }

 private:
  NPU_SIMD_INLINE void PrefetchRow() {
    constexpr int kForReading = 0, kSecondLevel = 2;
    --left_;
    if (from_ != nullptr) return from_->Prefetch(lines_);
    for (int64_t line = 0; line < lines_; ++line) __builtin_prefetch(row_ + 64 * line, kForReading, kSecondLevel);
    row_ += stride_;
  }

  const char* row_ = nullptr;
  int64_t stride_ = 0, lines_ = 0, left_ = 0;
  int64_t pace_ = 1, due_ = 0;
  LinesAhead* from_ = nullptr;
};

template <class Math>
class NarrowItem {
  using T = typename Math::Storage;
  static constexpr int64_t kKeyBlock = NarrowBuffers<Math>::kKeyBlock;
  static constexpr int64_t kScoreStride = NarrowBuffers<Math>::kScoreStride;

 public:
  NarrowItem(const Problem& p, const Item& item, LinesAhead* ahead, void* scratch)
      : p_(p), item_(item), ahead_(ahead), s_(p.sequences[static_cast<size_t>(item.sequence)]), b_(p, scratch) {}

  void Run(float* partials) {
    if (ahead_ == nullptr) PrefetchFirstKeys();
    Begin();
    for (int64_t begin = item_.key_begin; begin < item_.key_end; begin += kKeyBlock) {
      Step(begin, std::min(kKeyBlock, item_.key_end - begin));
    }
    if constexpr (Math::kPairs) {
      for (int64_t r = 0; r < item_.rows; ++r) {
        for (int64_t d = 0; d < paired_columns_; d += 2 * kLanes) OrderColumns(b_.sums + r * b_.value_stride + d);
      }
    }
    for (int64_t r = 0; r < item_.rows; ++r) {
      EmitRow(p_, item_, r, {max_[r], sum_[r], b_.sums + r * b_.value_stride}, partials);
    }
  }

 private:
  // There is no other work to overlap with until the first keys arrive. Under a mask nothing is prefetched: a page
  // table need not have pages for keys that no row sees.
  void PrefetchFirstKeys() const {
    const int64_t n = std::min(kKeyBlock, item_.key_end - item_.key_begin);
    if (n <= 0 || p_.mask != nullptr) return;
    if (!keys_in_place_) return;
    ForEachStretch(p_, s_, Keys(p_, s_), item_.key_head, item_.key_begin, item_.key_begin + n,
                   [&](const Stretch& at) { Ahead(at, b_.key_stride).PrefetchAll(); });
  }

  void Begin() {
    std::fill_n(b_.queries, item_.rows * b_.key_stride, typename Math::Query{});
    std::fill_n(b_.sums, item_.rows * b_.value_stride, 0.0f);
    for (int64_t r = 0; r < item_.rows; ++r) {
      CopyQuery(p_, item_, r, b_.queries + r * b_.key_stride);
      if constexpr (Math::kPairs) {
        SpreadPairs(b_.queries + r * b_.key_stride, b_.key_stride, b_.spread + 2 * r * b_.key_stride);
      }
      max_[r] = kNegativeInfinity;
      sum_[r] = 0.0f;
      keys_[r] = KeysOfRow(s_, PlaceOf(p_, item_, r).query);
    }
  }

  void Step(int64_t begin, int64_t n) {
    if (ahead_ != nullptr) ahead_->FindSpans();
    if (p_.mask != nullptr && p_.mask_head_stride == 0 && s_.column_gap == 0) {
      const int64_t first = PlaceOf(p_, item_, 0).query;
      const int64_t last = PlaceOf(p_, item_, item_.rows - 1).query;
      const uint8_t* mask = p_.mask + s_.mask + first * p_.mask_row_stride + begin;
      if (CoverOf(mask, p_.mask_row_stride, last - first + 1, n) == Cover::kAll) return;
      // Cache entries outside the sequence may hold anything, and need not be read.
      const KeyRange seen = SeenKeys(mask, p_.mask_row_stride, last - first + 1, n);
      begin += seen.begin;
      n = seen.end - seen.begin;
      if (n == 0) return;
    }
    if (keys_in_place_) {
      ForEachStretch(p_, s_, Keys(p_, s_), item_.key_head, begin, begin + n, [&](const Stretch& at) {
        ScoreKeys(at.row<T>(0), at.row_stride, at.first - begin, at.count, ValuesAhead(at.first, at.count));
      });
    } else {
      CopyKeys(p_, s_, item_.key_head, begin, begin + n, b_.keys, b_.key_stride);
      ScoreKeys(b_.keys, b_.key_stride, 0, n, ValuesAhead(begin, n));
    }
    for (int64_t r = 0; r < item_.rows; ++r) Normalise(r, begin, n);

    if (values_in_place_) {
      ForEachStretch(p_, s_, Values(p_, s_), item_.key_head, begin, begin + n, [&](const Stretch& at) {
        AddValues(at.row<T>(0), at.row_stride, at.first - begin, at.count, KeysAhead(at.first + n, at.count));
      });
    } else {
      CopyRows(p_, s_, Values(p_, s_), item_.key_head, begin, begin + n, p_.value_size, b_.values, b_.value_stride);
      ClearTails(b_.values, n, p_.value_size, b_.value_stride);
      AddValues(b_.values, b_.value_stride, 0, n, KeysAhead(begin + n, n));
    }
  }

  // `first` is the place of the first key in the block.
  NPU_SIMD_INLINE void ScoreKeys(const T* keys, int64_t stride, int64_t first, int64_t count, RowsAhead ahead) {
    if constexpr (Math::kPairs) {
      ahead.SetPace(b_.key_stride);
      ForAllRows([&](auto rows) NPU_SIMD_INLINE_LAMBDA { PairScores<rows>(keys, stride, first, count, ahead); });
    } else {
      ahead.SetPace(b_.key_stride * RowGroups());
      ForRows([&](auto rows, int64_t r) NPU_SIMD_INLINE_LAMBDA { Scores<rows>(r, keys, stride, first, count, ahead); });
    }
  }

  NPU_SIMD_INLINE void AddValues(const T* values, int64_t stride, int64_t first, int64_t count, RowsAhead ahead) {
    ahead.SetPace(b_.value_stride * RowGroups());
    ForRows([&](auto rows, int64_t r) NPU_SIMD_INLINE_LAMBDA {
      int64_t d = 0;
      if constexpr (Math::kPairs) {
        for (; d + 4 * kLanes <= paired_columns_; d += 4 * kLanes)
          PairTile<rows, 2>(r, values + d, stride, first, count, d, ahead);
        for (; d < paired_columns_; d += 2 * kLanes) PairTile<rows, 1>(r, values + d, stride, first, count, d, ahead);
      }
      for (; d + 4 * kLanes <= b_.value_stride; d += 4 * kLanes)
        ValueTile<rows, 4>(r, values + d, stride, first, count, d, ahead);
      for (; d < b_.value_stride; d += kLanes) ValueTile<rows, 1>(r, values + d, stride, first, count, d, ahead);
    });
  }

  // Rows are read in place if they are whole registers in stretches of several.
  bool InPlace(const KeyOperand& operand, int64_t columns, int64_t padded) const {
    const bool scattered = p_.pages.table != nullptr && p_.pages.page_rows < kLanes;
    return columns == padded && operand.rows.dtype == DTypeOf<T>::value && operand.rows.chunk == 0 && !scattered;
  }

  RowsAhead Ahead(const Stretch& at, int64_t columns) const { return {at.row<T>(0), at.row_stride, columns, at.count}; }
  RowsAhead ValuesAhead(int64_t begin, int64_t count) const {
    if (ahead_ != nullptr) return RowsAhead::Of<T>(ahead_, b_.value_stride, count);
    if (!values_in_place_) return {};
    return Ahead(StretchFrom(p_, s_, Values(p_, s_), item_.key_head, begin, begin + count), b_.value_stride);
  }
  // The rows after those of the item may have no page, nor may keys under a mask.
  RowsAhead KeysAhead(int64_t begin, int64_t count) const {
    if (ahead_ != nullptr) return RowsAhead::Of<T>(ahead_, b_.key_stride, count);
    if (!keys_in_place_ || begin >= item_.key_end || (p_.mask != nullptr && p_.pages.table != nullptr)) return {};
    const int64_t end = std::min(begin + count, item_.key_end);
    return Ahead(StretchFrom(p_, s_, Keys(p_, s_), item_.key_head, begin, end), b_.key_stride);
  }

  int64_t RowGroups() const { return (item_.rows + 3) / 4; }  // of ForRows

  // Calls f for groups of up to four rows.
  template <class F>
  NPU_SIMD_INLINE void ForRows(F&& f) const {
    int64_t r = 0;
    for (; r + 4 <= item_.rows; r += 4) f(std::integral_constant<int, 4>{}, r);
    const int64_t rest = item_.rows - r;
    if (rest == 3) f(std::integral_constant<int, 3>{}, r);
    if (rest == 2) f(std::integral_constant<int, 2>{}, r);
    if (rest == 1) f(std::integral_constant<int, 1>{}, r);
  }

  // Calls f for all rows at once.
  template <class F>
  NPU_SIMD_INLINE void ForAllRows(F&& f) const {
    [&]<int... kRow>(std::integer_sequence<int, kRow...>) NPU_SIMD_INLINE_LAMBDA {
      ((item_.rows == kRow + 1 && (f(std::integral_constant<int, kRow + 1>{}), true)) || ...);
    }(std::make_integer_sequence<int, kNarrowRows>{});
  }

  // The last key is computed again in place of keys that are not there.
  template <int kRows>
  NPU_SIMD_INLINE void PairScores(const T* keys, int64_t key_stride, int64_t first, int64_t n, RowsAhead& ahead) {
    constexpr int64_t kKeys = 8;
    const auto score = [&](int64_t j, const auto& key) NPU_SIMD_INLINE_LAMBDA {
      ScoreEightKeys<kRows>(b_.spread, 2 * b_.key_stride, b_.key_stride, key, score_scale_, b_.scores + first + j,
                            kScoreStride, [&] NPU_SIMD_INLINE_LAMBDA { ahead.Work(kKeys * Math::kStep); });
    };
    int64_t j = 0;
    for (; j + kKeys <= n; j += kKeys, keys += kKeys * key_stride) {
      score(j, [&](int i) NPU_SIMD_INLINE_LAMBDA { return keys + i * key_stride; });
    }
    if (j < n)
      score(j, [&](int i) NPU_SIMD_INLINE_LAMBDA { return keys + std::min<int64_t>(i, n - j - 1) * key_stride; });
  }

  // Up to kLanes dot products at a time, kRows rows by kLanes / kRows keys, whose sums end up in one vector.
  template <int kRows>
  NPU_SIMD_INLINE void Scores(int64_t r, const T* keys, int64_t key_stride, int64_t first, int64_t n,
                              RowsAhead& ahead) {
    constexpr int kKeys = kLanes / kRows;
    const typename Math::Query* queries = b_.queries + r * b_.key_stride;
    const float scale = score_scale_;
    for (int64_t j = 0; j < n; j += kKeys) {
      const T* key[kKeys];
#pragma GCC unroll 16
      for (int k = 0; k < kKeys; ++k) key[k] = keys + std::min(j + k, n - 1) * key_stride;
      ahead.Work(kKeys * b_.key_stride);
      Vec sum[kLanes] = {};
      for (int64_t d = 0; d < b_.key_stride; d += Math::kStep) {
        typename Math::Register q[kRows];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) q[i] = Math::LoadStep(queries + i * b_.key_stride + d);
#pragma GCC unroll 16
        for (int k = 0; k < kKeys; ++k) {
          const typename Math::Register x = Math::LoadStep(key[k] + d);
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) Math::MultiplyAdd(sum[i * kKeys + k], x, q[i]);
        }
      }
      alignas(64) float products[kLanes];
      Store(products, SumLanes(sum) * scale);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        std::memcpy(b_.scores + (r + i) * kScoreStride + first + j, products + i * kKeys, sizeof(float) * kKeys);
      }
    }
  }

  // Turns the scores of row r into weights relative to the new maximum and rescales earlier sums.
  void Normalise(int64_t r, int64_t begin, int64_t n) {
    float* scores = b_.scores + r * kScoreStride;
    if (cap_.active()) {
      for (int64_t j = 0; j < n; j += kLanes) Store(scores + j, cap_(Load(scores + j)));
    }
    if (p_.mask != nullptr || p_.bias.data != nullptr) {
      FillBias(p_, item_, r, begin, n, b_.bias);
      for (int64_t j = 0; j < n; ++j) scores[j] += b_.bias[j];
    }
    const KeyRange keys = keys_[r];
    std::fill(scores, scores + std::clamp<int64_t>(keys.begin - begin, 0, n), kNegativeInfinity);
    std::fill(scores + std::clamp<int64_t>(keys.end - begin, 0, n), scores + RoundUp(n, kLanes), kNegativeInfinity);

    Vec block_max = Broadcast(max_[r]);
    for (int64_t j = 0; j < n; j += kLanes) block_max = Max(block_max, Load(scores + j));
    const float max = MaxLane(block_max);
    const float reference = max == kNegativeInfinity ? 0.0f : max;
    const float scale = Exp2(Broadcast(max_[r] - reference))[0];
    Vec sum = {};
    for (int64_t j = 0; j < n; j += kLanes) {
      const Vec weight = Exp2(Load(scores + j) - reference);
      sum += weight;
      Store(scores + j, weight_scale_ == 0.0f ? weight : QuantiseWeight(weight, weight_scale_));
    }
    sum_[r] = sum_[r] * scale + SumLane(sum);
    max_[r] = max;
    if (p_.dropout.active()) {
      FillDropout(p_, item_, r, begin, n, b_.bias);
      for (int64_t j = 0; j < n; ++j) scores[j] *= b_.bias[j];
    }
    if constexpr (Math::kPairs) RoundWeights(scores, n, b_.weights + r * kScoreStride);
    if (scale != 1.0f) {
      float* sums = b_.sums + r * b_.value_stride;
      for (int64_t d = 0; d < b_.value_stride; ++d) sums[d] *= scale;
    }
  }

  template <int kRows, int kPairs>
  NPU_SIMD_INLINE void PairTile(int64_t r, const T* values, int64_t stride, int64_t first, int64_t n, int64_t column,
                                RowsAhead& ahead) {
    AddPairsOfValues<kRows, kPairs>(b_.weights + r * kScoreStride + first, kScoreStride, values, stride, n,
                                    b_.sums + r * b_.value_stride + column, b_.value_stride,
                                    [&] NPU_SIMD_INLINE_LAMBDA { ahead.Work(2 * kPairs * Math::kStep); });
  }

  template <int kRows, int kVectors>
  NPU_SIMD_INLINE void ValueTile(int64_t r, const T* values, int64_t stride, int64_t first, int64_t n, int64_t column,
                                 RowsAhead& ahead) {
    const float* weights = b_.scores + r * kScoreStride + first;
    float* sums = b_.sums + r * b_.value_stride + column;
    Vec sum[kRows][kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = Load(sums + i * b_.value_stride + v * kLanes);
    }
    for (int64_t j = 0; j < n; ++j) {
      ahead.Work(kVectors * kLanes);
      Vec x[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) x[v] = LoadFloats(values + j * stride + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const float w = weights[i * kScoreStride + j];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] += x[v] * w;
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Store(sums + i * b_.value_stride + v * kLanes, sum[i][v]);
    }
  }

  const Problem& p_;
  const Item& item_;
  LinesAhead* ahead_;  // of another sequence; null: the item prefetches its own rows
  const Sequence& s_;
  NarrowBuffers<Math> b_;
  const float score_scale_ = ScoreScale(p_) * kLog2E, weight_scale_ = WeightScale(p_);
  const ScoreCap cap_{p_};
  const bool keys_in_place_ = InPlace(Keys(p_, s_), p_.rope_size == 0 ? p_.head_size : 0, b_.key_stride);
  const bool values_in_place_ = InPlace(Values(p_, s_), p_.value_size, b_.value_stride);
  const int64_t paired_columns_ = Math::kPairs ? b_.value_stride / (2 * kLanes) * (2 * kLanes) : 0;
  float max_[kNarrowRows], sum_[kNarrowRows];
  KeyRange keys_[kNarrowRows];
};

template <class Math>
void RunNarrowItem(const Problem& p, const Item& item, LinesAhead* ahead, float* partials, void* scratch) {
  NarrowItem<Math>(p, item, ahead, scratch).Run(partials);
}

template <class Math>
size_t NarrowScratchBytes(const Problem& p) {
  return NarrowBuffers<Math>(p, nullptr).carver.bytes();
}

}  // namespace npu::attention
