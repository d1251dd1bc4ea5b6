// Where rows are stored and which keys they see: shared by both ways of computing an Item.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/core/key_value_rows.h"
#include "ep/kernels/attention/core/simd.h"

namespace npu::attention {

inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2 = 0x1.62e430p-1f;

// Items of up to this many rows are cheaper with vectors along the head size (narrow.h) than across rows (panel.h).
inline constexpr int64_t kNarrowRows = kLanes / 2;

inline int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct KeyRange {
  int64_t begin = 0, end = 0;
};

// Both ends increase with the row.
inline KeyRange KeysOfRow(const Sequence& s, int64_t row) {
  if (row >= s.query_len) return {};
  const int64_t begin = std::clamp<int64_t>(row + s.left, 0, s.key_len);
  return {begin, std::max(std::clamp<int64_t>(row + s.right + 1, begin, s.key_len), s.prefix)};
}

// The union of the keys that rows [first, last] see.
inline KeyRange KeysOfRows(const Sequence& s, int64_t first, int64_t last) {
  if (first >= s.query_len) return {};
  return {KeysOfRow(s, first).begin, KeysOfRow(s, std::min(last, s.query_len - 1)).end};
}

// Row `r` of the item's group: query r / group of head key_head * group + r % group.
struct RowPlace {
  int64_t query, head;
};
inline RowPlace PlaceOf(const Problem& p, const Item& item, int64_t r) {
  const int64_t group = p.heads / p.key_heads;
  return {(item.row_begin + r) / group, item.key_head * group + (item.row_begin + r) % group};
}

// The places of consecutive rows of an item, without a division for each.
class RowPlaces {
 public:
  RowPlaces(const Problem& p, const Item& item, int64_t first)
      : at_(PlaceOf(p, item, first)),
        first_head_(item.key_head * (p.heads / p.key_heads)),
        end_head_((item.key_head + 1) * (p.heads / p.key_heads)) {}
  RowPlace Next() {
    const RowPlace at = at_;
    if (++at_.head == end_head_) at_ = {at_.query + 1, first_head_};
    return at;
  }

 private:
  RowPlace at_;
  int64_t first_head_, end_head_;
};

void QueryAsFloats(const Problem& p, const Rows& rows, DType dtype, int64_t offset, int64_t columns, float* to);

// Copies a query, followed by its rope columns, as floats or, if its type is U, unconverted.
template <class U>
void CopyQuery(const Problem& p, const Sequence& s, const RowPlace& at, U* to) {
  const auto copy = [&](const Rows& rows, DType dtype, int64_t offset, int64_t columns, U* first) {
    offset += at.head * rows.head_stride + at.query * rows.row_stride;
    if constexpr (std::is_same_v<U, float>) {
      QueryAsFloats(p, rows, dtype, offset, columns, first);
    } else {
      std::memcpy(first, static_cast<const U*>(rows.data) + offset, static_cast<size_t>(columns) * sizeof(U));
    }
  };
  copy(p.query, p.query_dtype, s.query, p.head_size, to);
  if (p.rope_size > 0) copy(p.query_rope, p.key_rope.dtype, s.query_rope, p.rope_size, to + p.head_size);
}

template <class U>
void CopyQuery(const Problem& p, const Item& item, int64_t r, U* to) {
  CopyQuery(p, p.sequences[static_cast<size_t>(item.sequence)], PlaceOf(p, item, r), to);
}

// The state of a row after some of its keys: the maximum score (in units of log 2), the sum of 2^(score - maximum), and
// the sum of the values with the same weights.
struct RowState {
  float max, sum;
  float* values;
};

inline int64_t PartialStride(const Problem& p) { return p.value_size + 2; }

// Adds a score that has no value.
inline void AddSink(float score, int64_t value_size, RowState& state) {
  const float max = std::max(state.max, score);
  if (max == kNegativeInfinity) return;
  const float scale = std::exp2(state.max - max);
  for (int64_t d = 0; d < value_size; ++d) state.values[d] *= scale;
  state.sum = state.sum * scale + std::exp2(score - max);
  state.max = max;
}

// Writes a finished row. `values` is overwritten.
void FinishRow(const Problem& p, const Item& item, int64_t r, RowState state);

// Computes a row of an item separately, from only the keys that it sees.
void RecomputeRow(const Problem& p, const Item& item, int64_t r, RowState& state);

// Writes a row of an item: finished, or as a partial result where the keys are split. `values` is overwritten.
void EmitRow(const Problem& p, const Item& item, int64_t r, RowState state, float* partials);

// The factors of scores and of int8 weights; the latter is 0 if weights stay floats.
float ScoreScale(const Problem& p);

// Scores in units of log 2, bounded by a softcap. The error is that of a float near the cap.
class ScoreCap {
 public:
  explicit ScoreCap(const Problem& p) : cap_(p.softcap * kLog2E), rate_(2.0f * kLog2E / cap_) {}
  bool active() const { return cap_ != 0.0f; }
  // cap * tanh(score / cap)
  NPU_SIMD_INLINE Vec operator()(Vec score) const {
    Vec x = score * rate_;
    x = x > 40.0f ? Broadcast(40.0f) : x;  // beyond, tanh is 1; Exp2 bounds it from below
    return cap_ - 2.0f * cap_ / (Exp2(x) + 1.0f);
  }
  float operator()(float score) const { return cap_ * std::tanh(score / cap_); }

 private:
  float cap_, rate_;
};
float WeightScale(const Problem& p);
// Weights 2^x as the second matmul reads them.
NPU_SIMD_INLINE Vec QuantiseWeight(Vec weight, float scale) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  weight *= scale;
  weight = weight > 127.0f ? Broadcast(127.0f) : weight;  // keeps NaN, of a scale or of a score
  weight = weight < -128.0f ? Broadcast(-128.0f) : weight;
  return (weight + kRound) - kRound;
}

// How much of a block of rows and keys the mask hides.
enum class Cover { kNone, kSome, kAll };

inline Cover CoverOf(const uint8_t* mask, int64_t stride, int64_t rows, int64_t keys) {
  bool none = true, all = true;
  for (int64_t i = 0; i < rows && (none || all); ++i) {
    const uint8_t* row = mask + i * stride;
    uint8_t any = 0, clear = 0;
    for (int64_t j = 0; j < keys; ++j) {
      any |= row[j];
      clear |= row[j] == 0;
    }
    none = none && any == 0;
    all = all && clear == 0;
  }
  return none ? Cover::kNone : all ? Cover::kAll : Cover::kSome;
}

// The range that remains of `keys` keys without those at both ends that the mask hides from all rows.
inline KeyRange SeenKeys(const uint8_t* mask, int64_t stride, int64_t rows, int64_t keys) {
  const auto hidden = [&](int64_t j) {
    for (int64_t i = 0; i < rows; ++i) {
      if (mask[i * stride + j] == 0) return false;
    }
    return true;
  };
  KeyRange seen{0, keys};
  while (seen.begin < seen.end && hidden(seen.begin)) ++seen.begin;
  while (seen.begin < seen.end && hidden(seen.end - 1)) --seen.end;
  return seen;
}

// The offset of a row's bias, and for how many keys it is stored; it is 0 for the others.
struct BiasPlace {
  int64_t offset, keys;
};
inline BiasPlace BiasOf(const Problem& p, const Sequence& s, int64_t row) {
  if (row >= p.bias_first_row) return {(row - p.bias_first_row) * p.bias.row_stride, s.key_len};
  const int64_t last = s.query_rows - 1, shift = last - row;
  return {(last - p.bias_first_row) * p.bias.row_stride + shift, s.key_len - shift};
}

// The column of a mask or bias that speaks of a key.
inline int64_t ColumnOf(const Problem& p, const Sequence& s, int64_t key) {
  return key < p.prefix_rows ? key : key + s.column_gap;
}

// The mask of a row, from column 0 on.
inline const uint8_t* MaskOf(const Problem& p, const Sequence& s, const RowPlace& at) {
  return p.mask + s.mask + at.head * p.mask_head_stride + at.query * p.mask_row_stride;
}

// What is added to the scores of row r for keys [begin, begin + n), in units of log 2: the bias, or -inf if masked.
void FillBias(const Problem& p, const Item& item, int64_t r, int64_t begin, int64_t n, float* to);

// The dropout factors of the weights of row r for keys [begin, begin + n).
inline void FillDropout(const Problem& p, const Item& item, int64_t r, int64_t begin, int64_t n, float* to) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  p.dropout.Fill(s.dropout + (at.head * s.query_rows + at.query) * s.key_len + begin, n, to);
}

// Hands out consecutive aligned arrays of one buffer; with a null buffer it only counts bytes.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* Take(int64_t n) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += static_cast<size_t>(RoundUp(n * static_cast<int64_t>(sizeof(T)), 64));
    return p;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_ = 0;
};

}  // namespace npu::attention
