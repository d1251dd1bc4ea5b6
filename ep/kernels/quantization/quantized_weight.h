// Weights of int8, or of int4 in words of int32: eight to a word, the first in the lowest bits, along a row, [K, N /
// 8], or along a column, [K / 8, N].
#pragma once

#include <optional>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/op_check.h"

namespace npu {

// The shape of an input as the model declares it, if it has that input and does.
inline std::optional<Shape> DeclaredShape(const KernelInfo& info, size_t input) {
  return input < info.input_shapes.size() ? info.input_shapes[input] : std::nullopt;
}

struct QuantizedWeight {
  DType dtype = DType::kUndefined;  // of the elements: int8 or int4
  int64_t k = 0, n = 0;             // of one matrix
  bool along_columns = false;

  // Of the last two axes of `weight`, [.., K, N]; throws "[op] expected …, got …" when they do not hold K rows.
  static QuantizedWeight Of(const char* op, const char* name, const TensorView& weight, int64_t k) {
    const Shape& shape = weight.shape;
    NPU_OP_CHECK(op, shape.rank() >= 2, "expected ", name, " of two axes or more, got ", shape);
    const int64_t rows = shape[shape.rank() - 2], columns = shape.back();
    if (weight.dtype == DType::kInt8) {
      NPU_OP_CHECK(op, rows == k, "expected ", name, " [.., ", k, ", N], got ", shape);
      return {DType::kInt8, k, columns};
    }
    NPU_OP_CHECK(op, weight.dtype == DType::kInt32, "expected ", name, " of int8, or of int4 packed in int32, got ",
                 NameOf(weight.dtype));
    NPU_OP_CHECK(op, rows == k || (k % 8 == 0 && rows == k / 8), "expected ", name, " of packed int4 [.., ", k,
                 ", N / 8] or [.., ", k, " / 8, N], got ", shape);
    const bool along_columns = rows != k;
    int64_t n = columns;
    NPU_OP_CHECK(op, along_columns || !__builtin_mul_overflow(columns, kInWord, &n),
                 "expected a shape whose number of elements fits int64, got ", shape);
    return {DType::kInt4, k, n, along_columns};
  }

  // K of a constant weight of words, from what the model declares: the depth of the left operand, or the scales, one
  // for each column. -1 if neither tells along which axis words hold elements.
  static int64_t DeclaredDepth(const Shape& words, int64_t depth, const std::optional<Shape>& scales) {
    const int64_t rows = words[words.rank() - 2], columns = words.back();
    if (depth == rows || (rows <= INT32_MAX && depth == rows * kInWord)) return depth;
    if (depth >= 0 || !scales || scales->rank() == 0 || scales->back() <= 1 || rows > INT32_MAX) return -1;
    if (scales->back() == columns) return rows * kInWord;
    return scales->back() / kInWord == columns && scales->back() % kInWord == 0 ? rows : -1;
  }

  // Matrix `index` of those that begin at `data`.
  gemm::Matrix At(const void* data, int64_t index) const {
    const void* at = data ? static_cast<const char*>(data) + BytesFor(dtype, index * k * n) : nullptr;
    gemm::Matrix matrix = gemm::Matrix::RowMajor(at, k, n);
    if (along_columns) {
      matrix.row_stride = n * kInWord;
      matrix.column_stride = matrix.row_block = kInWord;
    }
    return matrix;
  }

  bool operator==(const QuantizedWeight&) const = default;

 private:
  static constexpr int64_t kInWord = 8;
};

}  // namespace npu
