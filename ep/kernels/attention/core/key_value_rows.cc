#include "ep/kernels/attention/core/key_value_rows.h"

#include "ep/kernels/convert.h"
#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/float_vector.h"

namespace npu::attention {

namespace {

float ReadFloat(const void* data, DType dtype, int64_t i) {
  return DispatchFloats("attention", dtype,
                        [&](auto type) { return ToFloat(static_cast<const decltype(type)*>(data)[i]); });
}

// Rounds floats to the precision of T.
template <class T>
void RoundTo(float* x, int64_t n) {
  T rounded[kMaxCacheHeadSize];
  FromFloat(x, rounded, n);
  ToFloat(rounded, x, n);
}

// Rows of int8 that have a scale of float32 each, in one pass: what a cache of an exported model has.
void LoadScaledRows(const AntiQuant& quant, const Stretch& at, int64_t columns, float* to, int64_t stride) {
  const auto* scale = static_cast<const float*>(quant.scale) + at.quant;
  constexpr int64_t kAhead = 16, kLine = 64;
  for (int64_t i = 0; i < at.count; ++i, to += stride) {
    for (int64_t b = 0; b < columns + kLine; b += kLine) __builtin_prefetch(at.row<int8_t>(i + kAhead) + b);
    const float of_row = scale[i * quant.row_stride];
    const int8_t* from = at.row<int8_t>(i);
    int64_t d = 0;
    for (; d + simd::kLanes <= columns; d += simd::kLanes)
      simd::Store(to + d, simd::LoadFloats(from + d) * simd::Broadcast(of_row));
    for (; d < columns; ++d) to[d] = static_cast<float>(from[d]) * of_row;
  }
}

// (x + offset) * scale for the rows of a stretch. Column scales are read once, row scales row by row.
class Dequantiser {
 public:
  Dequantiser(const AntiQuant& quant, int64_t first, int64_t columns) : quant_(quant), columns_(columns) {
    if (quant.row_stride == 0) Read(first);
    first_ = first;
  }

  void operator()(int64_t row, float* x) {
    if (quant_.row_stride != 0) Read(first_ + row * quant_.row_stride);
    if (quant_.offset != nullptr) {
      for (int64_t d = 0; d < columns_; ++d) x[d] += offset_[d];
      Round(x);
    }
    for (int64_t d = 0; d < columns_; ++d) x[d] *= scale_[d];
    Round(x);
  }

 private:
  void Read(int64_t first) {
    ReadOne(quant_.scale, first, scale_);
    if (quant_.offset != nullptr) ReadOne(quant_.offset, first, offset_);
  }
  void ReadOne(const void* data, int64_t first, float* to) const {
    if (quant_.column_stride == 0) {
      std::fill_n(to, columns_, ReadFloat(data, quant_.dtype, first));
      return;
    }
    DispatchFloats("attention", quant_.dtype,
                   [&](auto type) { ToFloat(static_cast<const decltype(type)*>(data) + first, to, columns_); });
  }
  void Round(float* x) const {
    if (quant_.dtype == DType::kFloat16) RoundTo<Float16>(x, columns_);
    if (quant_.dtype == DType::kBFloat16) RoundTo<BFloat16>(x, columns_);
  }

  const AntiQuant& quant_;
  int64_t first_ = 0, columns_;
  float scale_[kMaxCacheHeadSize], offset_[kMaxCacheHeadSize];
};

template <class T>
void LoadAsFloats(const CacheRows& rows, const T* from, float* to, int64_t columns) {
  if (rows.chunk == 0) return ToFloat(from, to, columns);
  for (int64_t d = 0; d < columns; d += rows.chunk) {
    ToFloat(from + d / rows.chunk * rows.chunk_stride, to + d, std::min(rows.chunk, columns - d));
  }
}

void LoadInt8(const CacheRows& rows, const int8_t* from, float* to, int64_t columns) {
  int8_t row[kMaxCacheHeadSize];
  if (rows.chunk != 0) {
    GatherRow(rows, from, row, columns);
    from = row;
  }
  for (int64_t d = 0; d < columns; ++d) to[d] = static_cast<float>(from[d]);
}

void LoadInt4(const CacheRows& rows, const uint32_t* from, float* to, int64_t columns) {
  uint32_t row[kMaxCacheHeadSize / 8];
  GatherRow(rows, from, row, columns / 8);
  for (int64_t word = 0; word < columns / 8; ++word) {
    for (int i = 0; i < 8; ++i) {
      to[8 * word + i] = static_cast<float>(static_cast<int32_t>(row[word] << (28 - 4 * i)) >> 28);
    }
  }
}

void LoadUInt4(const uint8_t* from, float* to, int64_t columns) {
  for (int64_t d = 0; d < columns; d += 2) {
    to[d] = static_cast<float>((from[d / 2] & 15) - 8);
    to[d + 1] = static_cast<float>((from[d / 2] >> 4) - 8);
  }
}

}  // namespace

void LoadStretch(const CacheRows& rows, const Stretch& at, int64_t columns, float* to, int64_t stride) {
  if (IsFloating(rows.dtype)) {
    DispatchFloats("attention", rows.dtype, [&](auto type) {
      for (int64_t i = 0; i < at.count; ++i) {
        LoadAsFloats(rows, at.row<decltype(type)>(i), to + i * stride, columns);
      }
    });
    return;
  }
  const AntiQuant& quant = rows.quant;
  const bool scaled = quant.scale != nullptr && quant.dtype == DType::kFloat32 && quant.offset == nullptr;
  if (scaled && quant.column_stride == 0 && rows.dtype == DType::kInt8 && rows.chunk == 0)
    return LoadScaledRows(quant, at, columns, to, stride);
  for (int64_t i = 0; i < at.count; ++i) {
    float* row = to + i * stride;
    if (rows.dtype == DType::kInt8) {
      LoadInt8(rows, at.row<int8_t>(i), row, columns);
    } else if (rows.dtype == DType::kInt32) {
      LoadInt4(rows, at.row<uint32_t>(i), row, columns);
    } else if (rows.dtype == DType::kUInt8) {
      LoadUInt4(at.row<uint8_t>(i), row, columns);
    } else {
      UpcastNarrow(rows.dtype, at.row<uint8_t>(i), 0, columns, row);
    }
  }
  if (rows.quant.scale == nullptr) return;
  Dequantiser dequantise(rows.quant, at.quant, columns);
  for (int64_t i = 0; i < at.count; ++i) dequantise(i, to + i * stride);
}

void PrefetchFirstRows(const Problem& p, const Item& item) {
  constexpr int kForReading = 0, kSecondLevel = 2;
  constexpr int64_t kKeys = 32;  // these keep a core's requests busy; an item asks for its later keys itself
  if (p.mask != nullptr) return;
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const int64_t end = std::min(item.key_end, item.key_begin + kKeys);
  const auto ask = [&](const KeyOperand& operand, int64_t columns) {
    if (operand.rows.chunk != 0) return;
    const int64_t width = BitsOf(operand.rows.dtype);
    const bool packed = operand.rows.dtype == DType::kInt32 || operand.rows.dtype == DType::kUInt8;
    const int64_t bytes = columns * (packed ? 4 : width) / 8;
    ForEachStretch(p, s, operand, item.key_head, item.key_begin, end, [&](const Stretch& at) {
      for (int64_t i = 0; i < at.count; ++i) {
        const char* row = at.data + i * at.row_stride * width / 8;
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, kForReading, kSecondLevel);
      }
    });
  };
  ask(Keys(p, s), p.head_size);
  ask(Values(p, s), p.value_size);
}

bool HeadsLieTogether(const Problem& p) {
  const auto together = [&](const CacheRows& rows, int64_t columns) {
    return rows.head_stride == columns && rows.row_stride == p.key_heads * columns && rows.chunk == 0 &&
           rows.dtype == p.query_dtype;
  };
  return p.mask == nullptr && p.rope_size == 0 && p.prefix_rows == 0 && together(p.key, p.head_size) &&
         together(p.value, p.value_size);
}

void LinesAhead::FindMore() {
  span_ = spans_ = 0;
  while (spans_ < kSpans) {
    if (row_ >= end_) {
      if (values_ || begin_ >= end_) {
        problem_ = nullptr;
        return;
      }
      values_ = true;
      row_ = begin_;
    }
    const KeyOperand operand = values_ ? Values(*problem_, *sequence_) : Keys(*problem_, *sequence_);
    const Stretch at = StretchFrom(*problem_, *sequence_, operand, 0, row_, end_);
    begins_[spans_] = at.data;
    ends_[spans_++] = at.data + at.count * at.row_stride * BitsOf(operand.rows.dtype) / 8;
    row_ += at.count;
  }
}

}  // namespace npu::attention
