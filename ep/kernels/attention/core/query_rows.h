// Where rows lie and which keys they see: shared by the two ways of computing an Item.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/core/key_value_rows.h"
#include "ep/kernels/attention/core/simd.h"

namespace npu::attention {

inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2 = 0x1.62e430p-1f;

// Up to this many rows, an item is cheaper with vectors along the head size (narrow.h) than across rows (panel.h).
inline constexpr int64_t kNarrowRows = kLanes / 2;

inline int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct KeyRange {
  int64_t begin = 0, end = 0;
};

// Both ends grow with the row.
inline KeyRange KeysOfRow(const Sequence& s, int64_t row) {
  if (row >= s.query_len) return {};
  const int64_t begin = std::clamp<int64_t>(row + s.left, 0, s.key_len);
  return {begin, std::max(std::clamp<int64_t>(row + s.right + 1, begin, s.key_len), s.prefix)};
}

// The keys that rows [first, last] see together.
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

void QueryAsFloats(const Problem& p, const Rows& rows, DType dtype, int64_t offset, int64_t columns, float* to);

// Query r, rope columns behind the others, as floats or, if it is of type U, as it is.
template <class U>
void CopyQuery(const Problem& p, const Item& item, int64_t r, U* to) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
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

// The state of a row after some of its keys: maximum of the scores (in units of log 2), sum of 2^(score - maximum), and
// the values summed with the same weights.
struct RowState {
  float max, sum;
  float* values;
};

inline int64_t PartialStride(const Problem& p) { return p.value_size + 2; }

// One more score, without a value.
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

// Computes a row of an item by itself, from the keys that it sees alone.
void RecomputeRow(const Problem& p, const Item& item, int64_t r, RowState& state);

// Writes a row of an item: finished, or as a partial result where the keys are split. `values` is overwritten.
void EmitRow(const Problem& p, const Item& item, int64_t r, RowState state, float* partials);

// What scores and int8 weights are multiplied with; the latter 0 where weights stay floats.
float ScoreScale(const Problem& p);
float WeightScale(const Problem& p);
// Weights 2^x as the second product takes them.
NPU_SIMD_INLINE Vec QuantiseWeight(Vec weight, float scale) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  weight *= scale;
  weight = weight > 127.0f ? Broadcast(127.0f) : weight;  // NaN stays, of a scale as of a score
  weight = weight < -128.0f ? Broadcast(-128.0f) : weight;
  return (weight + kRound) - kRound;
}

// What the mask says of rows and keys together.
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

// The part [begin, end) of `keys` keys that is left without those at both ends that the mask hides from all rows.
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

// Where a row's bias begins, and for how many keys it is held; beyond, it is 0.
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

// The factors that dropout gives the weights of row r for keys [begin, begin + n).
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
