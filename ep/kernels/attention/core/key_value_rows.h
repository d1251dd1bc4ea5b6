// Reading the rows of keys and values: strided, in pages, behind a prefix, in pieces, or as integers with scales.
#pragma once

#include <algorithm>
#include <cstring>

#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/checked_numbers.h"

namespace npu::attention {

// The maximum head size of inference operators, whose caches may be quantised.
inline constexpr int64_t kMaxCacheHeadSize = 512;

// One of the three operands that have a row per key, as a sequence reads it.
struct KeyOperand {
  const CacheRows& rows;
  int64_t offset;        // of row 0 of head 0, in elements
  int64_t quant_offset;  // likewise, of the scales
};
inline KeyOperand Keys(const Problem& p, const Sequence& s) { return {p.key, s.key, s.key_quant}; }
inline KeyOperand Values(const Problem& p, const Sequence& s) { return {p.value, s.value, s.value_quant}; }
inline KeyOperand KeyRopes(const Problem& p, const Sequence& s) { return {p.key_rope, s.key_rope, 0}; }

// Rows [first, first + count) of one head, row_stride elements apart.
struct Stretch {
  int64_t first = 0, count = 0;
  const char* data = nullptr;
  int64_t row_stride = 0;
  int64_t quant = 0;  // index of the first row's scale

  template <class T>
  const T* row(int64_t i) const {
    return reinterpret_cast<const T*>(data) + i * row_stride;
  }
};

// The longest stretch that starts at row `begin` and ends by `end`. Checks the entry of the page table.
inline Stretch StretchFrom(const Problem& p, const Sequence& s, const KeyOperand& operand, int64_t head, int64_t begin,
                           int64_t end) {
  const CacheRows& rows = operand.rows;
  const int64_t width = BitsOf(rows.dtype) / 8;
  Stretch at{begin, end - begin, nullptr, rows.row_stride, head * rows.quant.head_stride};
  if (begin < p.prefix_rows) {
    at.count = std::min(end, p.prefix_rows) - begin;
    at.row_stride = rows.prefix.row_stride;
    at.data = static_cast<const char*>(rows.prefix.data) +
              (head * rows.prefix.head_stride + begin * rows.prefix.row_stride) * width;
    return at;
  }
  int64_t row = begin - p.prefix_rows;
  int64_t offset = operand.offset + head * rows.head_stride;
  at.quant += operand.quant_offset;
  const PageTable& pages = p.pages;
  if (pages.table != nullptr) {
    const CheckedNumbers page_at(p.op, "block_table entries", pages.table, 0, pages.page_count);
    const int64_t page = page_at[s.page_row * pages.table_stride + row / pages.page_rows];
    offset += page * rows.page_stride;
    if (rows.quant.page_stride != 0) {
      at.quant += page * rows.quant.page_stride + row % pages.page_rows * rows.quant.row_stride;
    } else {
      at.quant += row * rows.quant.row_stride;
    }
    row %= pages.page_rows;
    at.count = std::min(at.count, pages.page_rows - row);
  } else {
    at.quant += row * rows.quant.row_stride;
  }
  at.data = static_cast<const char*>(rows.data) + (offset + row * rows.row_stride) * width;
  return at;
}

// Calls f(stretch) for the stretches of [begin, end).
template <class F>
void ForEachStretch(const Problem& p, const Sequence& s, const KeyOperand& operand, int64_t head, int64_t begin,
                    int64_t end, F&& f) {
  while (begin < end) {
    const Stretch at = StretchFrom(p, s, operand, head, begin, end);
    f(at);
    begin += at.count;
  }
}

// Copies `columns` elements of a row without conversion, joining its pieces if it is chunked.
template <class T>
void GatherRow(const CacheRows& rows, const T* from, T* to, int64_t columns) {
  if (rows.chunk == 0) {
    std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(T));
    return;
  }
  for (int64_t d = 0; d < columns; d += rows.chunk) {
    std::memcpy(to + d, from + d / rows.chunk * rows.chunk_stride,
                static_cast<size_t>(std::min(rows.chunk, columns - d)) * sizeof(T));
  }
}

// Loads the rows of a stretch as floats, dequantising integers; rows of `to` are `stride` floats apart.
void LoadStretch(const CacheRows& rows, const Stretch& at, int64_t columns, float* to, int64_t stride);

// Copies rows [begin, end) of an operand, as floats or, if their type is U, unconverted; rows of `to` are `stride`
// elements apart.
template <class U>
void CopyRows(const Problem& p, const Sequence& s, const KeyOperand& operand, int64_t head, int64_t begin, int64_t end,
              int64_t columns, U* to, int64_t stride) {
  ForEachStretch(p, s, operand, head, begin, end, [&](const Stretch& at) {
    U* first = to + (at.first - begin) * stride;
    if constexpr (std::is_same_v<U, float>) {
      LoadStretch(operand.rows, at, columns, first, stride);
    } else {
      for (int64_t i = 0; i < at.count; ++i) GatherRow(operand.rows, at.row<U>(i), first + i * stride, columns);
    }
  });
}

// Prefetches the first keys of an item and their values into the L2 cache. Under a mask nothing: a page table need not
// have pages for keys that no row sees.
void PrefetchFirstRows(const Problem& p, const Item& item);

// Whether rows of keys and values have all heads side by side and are read as they lie, so that LinesAhead may take
// them.
bool HeadsLieTogether(const Problem& p);

// Prefetches the keys and values of a sequence into the L2 cache, line after line as they lie in memory, all heads at
// once: where each head's rows are asked for alone, a core waits for most of them.
class LinesAhead {
 public:
  LinesAhead() = default;  // there is nothing to prefetch
  // Of the sequence of an item, whose keys all heads read.
  LinesAhead(const Problem& p, const Item& item)
      : problem_(&p),
        sequence_(&p.sequences[static_cast<size_t>(item.sequence)]),
        begin_(item.key_begin),
        row_(item.key_begin),
        end_(item.key_end) {}

  // Inlined into loops, whose registers a call would spill: prefetches what FindSpans has found.
  [[gnu::always_inline]] void Prefetch(int64_t lines) {
    constexpr int kForReading = 0, kSecondLevel = 2;
    for (;;) {
      const char* at = at_;  // not in memory while the loop runs
      for (; lines > 0 && at < stop_; --lines, at += 64) __builtin_prefetch(at, kForReading, kSecondLevel);
      at_ = at;
      if (lines == 0 || span_ == spans_) return;
      at_ = begins_[span_];
      stop_ = ends_[span_++];
    }
  }
  // To be called between loops: continues when all that has been found is prefetched.
  void FindSpans() {
    if (span_ == spans_ && problem_ != nullptr) FindMore();
  }
  void PrefetchRest() {
    for (FindSpans(); span_ < spans_ || at_ < stop_; FindSpans()) Prefetch(64);
  }

 private:
  static constexpr int kSpans = 32;

  void FindMore();

  const Problem* problem_ = nullptr;  // null: all lines have been found
  const Sequence* sequence_ = nullptr;
  int64_t begin_ = 0, row_ = 0, end_ = 0;
  bool values_ = false;
  const char *at_ = nullptr, *stop_ = nullptr;
  int span_ = 0, spans_ = 0;  // the next one, and how many have been found
  const char *begins_[kSpans], *ends_[kSpans];
};

template <class U>
void ClearTails(U* rows, int64_t count, int64_t columns, int64_t stride) {
  if (columns == stride) return;
  for (int64_t j = 0; j < count; ++j) std::fill(rows + j * stride + columns, rows + (j + 1) * stride, U{});
}

// The same for keys, followed by their rope columns, then zeros.
template <class U>
void CopyKeys(const Problem& p, const Sequence& s, int64_t head, int64_t begin, int64_t end, U* to, int64_t stride) {
  CopyRows(p, s, Keys(p, s), head, begin, end, p.head_size, to, stride);
  if (p.rope_size > 0) CopyRows(p, s, KeyRopes(p, s), head, begin, end, p.rope_size, to + p.head_size, stride);
  ClearTails(to, end - begin, p.head_size + p.rope_size, stride);
}

}  // namespace npu::attention
