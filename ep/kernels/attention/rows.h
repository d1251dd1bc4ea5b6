// Where rows lie and which keys they see: shared by the two ways of computing an Item.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/attention.h"
#include "ep/kernels/attention/simd.h"
#include "ep/kernels/convert.h"

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

// Which of the three operands with one row per key.
struct KeyOperand {
  const Rows& rows;
  int64_t offset;
  int64_t page_stride;
};
inline KeyOperand Keys(const Problem& p, const Sequence& s) { return {p.key, s.key, p.pages.key_page_stride}; }
inline KeyOperand Values(const Problem& p, const Sequence& s) { return {p.value, s.value, p.pages.value_page_stride}; }
inline KeyOperand KeyRopes(const Problem& p, const Sequence& s) {
  return {p.key_rope, s.key_rope, p.pages.key_rope_page_stride};
}

// Calls f(rows, first, count) for the stretches of [begin, end) whose rows are row_stride apart.
template <class T, class F>
void ForEachStretch(const Problem& p, const Sequence& s, const KeyOperand& operand, int64_t head, int64_t begin,
                    int64_t end, F&& f) {
  const T* base = static_cast<const T*>(operand.rows.data) + operand.offset + head * operand.rows.head_stride;
  const PageTable& pages = p.pages;
  if (pages.table == nullptr) {
    f(base + begin * operand.rows.row_stride, begin, end - begin);
    return;
  }
  while (begin < end) {
    const int64_t slot = begin % pages.page_rows;
    const int64_t count = std::min(end - begin, pages.page_rows - slot);
    const int64_t page = pages.table[s.page_row * pages.table_stride + begin / pages.page_rows];
    NPU_CHECK(page >= 0 && page < pages.page_count, "[", p.op, "] expected block_table entries in [0, ",
              pages.page_count, "), got ", page);
    f(base + page * operand.page_stride + slot * operand.rows.row_stride, begin, count);
    begin += count;
  }
}

template <class T, class U>
void CopyRow(const T* from, U* to, int64_t n) {
  if constexpr (std::is_same_v<T, U>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else {
    ToFloat(from, to, n);
  }
}
template <class U>
void ClearTails(U* rows, int64_t count, int64_t columns, int64_t stride) {
  if (columns == stride) return;
  for (int64_t j = 0; j < count; ++j) std::fill(rows + j * stride + columns, rows + (j + 1) * stride, U{});
}

// Rows [begin, end) of an operand, as floats or as they are, to rows of `stride` elements.
template <class T, class U>
void CopyRows(const Problem& p, const Sequence& s, const KeyOperand& operand, int64_t head, int64_t begin, int64_t end,
              int64_t columns, U* to, int64_t stride) {
  ForEachStretch<T>(p, s, operand, head, begin, end, [&](const T* rows, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      CopyRow(rows + i * operand.rows.row_stride, to + (first - begin + i) * stride, columns);
    }
  });
}
// The same for keys, rope columns behind the others, zeros behind both.
template <class T, class U>
void CopyKeys(const Problem& p, const Sequence& s, int64_t head, int64_t begin, int64_t end, U* to, int64_t stride) {
  CopyRows<T>(p, s, Keys(p, s), head, begin, end, p.head_size, to, stride);
  if (p.rope_size > 0) CopyRows<T>(p, s, KeyRopes(p, s), head, begin, end, p.rope_size, to + p.head_size, stride);
  ClearTails(to, end - begin, p.head_size + p.rope_size, stride);
}

// Row `r` of the item's group: query r / group of head key_head * group + r % group.
struct RowPlace {
  int64_t query, head;
};
inline RowPlace PlaceOf(const Problem& p, const Item& item, int64_t r) {
  const int64_t group = p.heads / p.key_heads;
  return {(item.row_begin + r) / group, item.key_head * group + (item.row_begin + r) % group};
}

template <class T, class U>
void CopyQuery(const Problem& p, const Item& item, int64_t r, U* to) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  CopyRow(static_cast<const T*>(p.query.data) + s.query + at.head * p.query.head_stride + at.query * p.query.row_stride,
          to, p.head_size);
  if (p.rope_size > 0) {
    CopyRow(static_cast<const T*>(p.query_rope.data) + s.query_rope + at.head * p.query_rope.head_stride +
                at.query * p.query_rope.row_stride,
            to + p.head_size, p.rope_size);
  }
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
template <class T>
void FinishRow(const Problem& p, const Item& item, int64_t r, RowState state) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  if (p.sink != nullptr) AddSink(p.sink[at.head] * kLog2E, p.value_size, state);
  if (state.sum == 0.0f) {
    std::fill_n(state.values, p.value_size, 0.0f);
  } else {
    const float inverse = 1.0f / state.sum;
    for (int64_t d = 0; d < p.value_size; ++d) state.values[d] *= inverse;
  }
  T* out = static_cast<T*>(p.output.data) + s.output + at.head * p.output.head_stride + at.query * p.output.row_stride;
  FromFloat(state.values, out, p.value_size);
  if (p.lse != nullptr) {
    p.lse[s.lse + at.head * p.lse_head_stride + at.query * p.lse_row_stride] =
        state.sum == 0.0f ? kNegativeInfinity : (state.max + std::log2(state.sum)) * kLn2;
  }
  const int64_t place = s.lse + at.head * p.lse_head_stride + at.query * p.lse_row_stride;
  if (p.row_max != nullptr) std::fill_n(p.row_max + place, kStatisticsWidth, state.max * kLn2);
  if (p.row_sum != nullptr) std::fill_n(p.row_sum + place, kStatisticsWidth, state.sum);
}

// Writes a row of an item: finished, or as a partial result where the keys are split.
template <class T>
void EmitRow(const Problem& p, const Item& item, int64_t r, RowState state, float* partials) {
  if (item.partial < 0) return FinishRow<T>(p, item, r, state);
  float* to = partials + (item.partial + r) * PartialStride(p);
  to[0] = state.max;
  to[1] = state.sum;
  std::copy_n(state.values, p.value_size, to + 2);
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

// Where a row's bias begins, and for how many keys it is held; beyond, it is 0.
struct BiasPlace {
  int64_t offset, keys;
};
inline BiasPlace BiasOf(const Problem& p, const Sequence& s, int64_t row) {
  if (row >= p.bias_first_row) return {(row - p.bias_first_row) * p.bias.row_stride, s.key_len};
  const int64_t last = s.query_rows - 1, shift = last - row;
  return {(last - p.bias_first_row) * p.bias.row_stride + shift, s.key_len - shift};
}

// What is added to the scores of row r for keys [begin, begin + n), in units of log 2: the bias, or -inf if masked.
template <class T>
void FillBias(const Problem& p, const Item& item, int64_t r, int64_t begin, int64_t n, float* to) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  if (p.bias.data != nullptr) {
    const BiasPlace from = BiasOf(p, s, at.query);
    const T* bias = static_cast<const T*>(p.bias.data) + s.bias + at.head * p.bias.head_stride + from.offset + begin;
    const int64_t held = std::clamp<int64_t>(from.keys - begin, 0, n);
    ToFloat(bias, to, held);
    const float scale = p.bias_scale * kLog2E;
    for (int64_t j = 0; j < held; ++j) to[j] *= scale;
    std::fill(to + held, to + n, 0.0f);
  } else {
    std::fill_n(to, n, 0.0f);
  }
  if (p.mask != nullptr) {
    const uint8_t* mask = p.mask + s.mask + at.head * p.mask_head_stride + at.query * p.mask_row_stride + begin;
    for (int64_t j = 0; j < n; ++j) to[j] = mask[j] != 0 ? kNegativeInfinity : to[j];
  }
}

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
