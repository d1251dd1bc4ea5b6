// Quantising and dequantising rows: the arithmetic that every quantised operator shares.
//
// Everything is computed in float32, one IEEE operation after the other, never contracted to fused ones, so that every
// machine makes the same integers. Values are rounded half to even and saturate. NaN becomes 0; so do 0 / 0 with a
// scale of 0, while other values over a scale of 0 saturate as infinities do.
#pragma once

#include <cstdint>

#include "ep/kernels/quantization/float_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// kInt4 is stored eight to an int32, the first in the lowest bits.
enum class QuantizedType { kInt8, kUInt8, kInt32, kInt4 };

const char* NameOf(QuantizedType type);
// Of the tensor that holds it.
inline DType StorageOf(QuantizedType type) {
  return type == QuantizedType::kInt8 ? DType::kInt8 : type == QuantizedType::kUInt8 ? DType::kUInt8 : DType::kInt32;
}
// Bytes of `count` values; of int4, a multiple of eight.
inline int64_t BytesOf(QuantizedType type, int64_t count) {
  return type == QuantizedType::kInt4 ? count / 2 : type == QuantizedType::kInt32 ? count * 4 : count;
}

enum class QuantizeBy {
  kDivision,                    // round(x / scale) + offset
  kDivisionRoundedAtEnd,        // round(x / scale + offset)
  kMultiplicationRoundedAtEnd,  // round(x * scale + offset)
};

// Floats beside a row: one for each column, or one for all of them.
struct RowParameter {
  const float* values;
  bool per_column;
  RowParameter From(int64_t column) const { return {per_column ? values + column : values, per_column}; }
};

// out[i] = x[i] quantised, for up to kRowBlock values; of int4 a multiple of eight.
void QuantizeBlock(QuantizeBy how, QuantizedType type, const float* x, RowParameter scale, RowParameter offset,
                   void* out, int64_t count);

// out[i] = (x[i] + offset) * scale, for up to kRowBlock values.
void DequantizeBlock(const float* x, RowParameter scale, RowParameter offset, float* out, int64_t count);

// The shape of the tensor that holds values of `shape`: the last axis of int4 is an eighth, and must be a multiple.
Shape StoredShape(const char* op, const char* name, const Shape& shape, QuantizedType type);

// Rows are worked on in pieces, so that few long ones are split over the threads as well as many short ones.
inline constexpr int64_t kPiece = 16 * kRowBlock;
inline int64_t PiecesOf(int64_t length) { return (length + kPiece - 1) / kPiece; }

// Calls f(row, begin, count) for the pieces of rows, in parallel unless `in_order`; `begin` is a multiple of kPiece.
template <class F>
void ForEachPiece(int64_t rows, int64_t length, const F& f, bool in_order = false) {
  const int64_t total = rows * PiecesOf(length), pieces = PiecesOf(length);
  if (total == 0) return;
  ParallelFor(total, in_order ? total : RowGrain(std::min(length, kPiece)), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i % pieces * kPiece;
      f(i / pieces, begin, std::min(kPiece, length - begin));
    }
  });
}

// Quantises row `row` of a tensor of rows of `length`, from column `begin` on.
inline void QuantizePiece(QuantizeBy how, QuantizedType type, const TensorView& x, int64_t row, int64_t length,
                          int64_t begin, int64_t count, RowParameter scale, RowParameter offset, void* out) {
  FloatBlock block;
  const int64_t at = row * length + begin;
  ForEachBlock(count, [&](int64_t from, int64_t n) {
    QuantizeBlock(how, type, block.Load(x, at + from, n), scale.From(begin + from), offset.From(begin + from),
                  static_cast<char*>(out) + BytesOf(type, at + from), n);
  });
}

}  // namespace npu
