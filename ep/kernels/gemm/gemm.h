// The matrix unit: C = alpha * A * B + addend, for float32, bfloat16 and float16, accumulated in float32; and for
// matrices of 8- and 4-bit integers, accumulated exactly in int32, which wraps, and then scaled; and for an A of floats
// with a B of integers, which become A's type panel by panel.
//
// B is packed into panels, once when it is a constant and panel by panel when it is not; the one packed form serves
// every number of rows, from a decode step (one row: B is read once, at memory bandwidth) to a prefill.
//
//   packing.h       the layouts of A and B
//   quantized.h     that of a B of integers for an A of floats
//   microkernel.h   sliver of A × panel of B → tile, one set of functions per instruction set
//   blocking.h      how a product is cut for the caches and the threads
//   epilogue.h      tile → C
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu::gemm {

// A matrix in memory. Element (i, j) is data[i * row_stride + j * column_stride].
struct Matrix {
  const void* data = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 0;  // in elements
  // Of a B of integers: so many elements of a column follow each other, and row_stride leads to the next ones. Words of
  // eight 4-bit integers along a column are such blocks.
  int64_t row_block = 1;

  int64_t Offset(int64_t row, int64_t column) const {
    if (row_block == 1) return row * row_stride + column * column_stride;
    return row / row_block * row_stride + row % row_block + column * column_stride;
  }
  static Matrix RowMajor(const void* data, int64_t rows, int64_t columns) { return {data, rows, columns, columns, 1}; }
  Matrix Transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

// What is added to the product: element (i, j) of `scale * addend`; a stride of 0 broadcasts. Null adds nothing.
struct Addend {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;  // float32, float16 or bfloat16
  int64_t row_stride = 0, column_stride = 0;
  float scale = 1.0f;
};

struct Result {
  void* data = nullptr;
  DType dtype = DType::kUndefined;  // float32, float16, bfloat16 or int8; of integer operands int32, too
  int64_t row_stride = 0;
};

// One value for each row or column: that of row i is data[i * stride], a stride of 0 broadcasts. Null has no effect.
template <class T>
struct PerLine {
  const T* data = nullptr;
  int64_t stride = 0;
};

// What integer operands have besides their elements.
struct IntegerTerms {
  PerLine<int32_t> a_zero_point = {}, b_zero_point = {};  // of the rows of A and the columns of B, taken from them
  PerLine<int32_t> bias = {};                             // of the columns, added to the sums
};

// value = alpha * sum * column_scale * row_scale + addend, each operation rounded to float32. A result of int8 is
// value * output_scale + output_offset, rounded half to even and saturated; one of int32 is the sum itself.
struct Epilogue {
  float alpha = 1.0f;
  Addend addend = {};
  PerLine<float> column_scale = {}, row_scale = {};
  PerLine<float> output_scale = {}, output_offset = {};  // of the columns
  IntegerTerms integers = {};
};

// What the integers of a B stand for when A has floats: (element + offset) * scale, computed in float32 and rounded to
// A's type; in float16 the sum is rounded, too. Element (k, n) has those at [k / group * group_stride + n *
// column_stride].
struct Dequantization {
  const void* scale = nullptr;
  const void* offset = nullptr;     // null: none
  DType dtype = DType::kUndefined;  // of both: float32, float16 or bfloat16
  int64_t group = 0;                // rows of B that share them; 0: all
  int64_t group_stride = 0, column_stride = 0;
};

// B in panel order: what Pack wrote.
struct PackedMatrix {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;   // of A
  DType stored = DType::kUndefined;  // of the elements: `dtype`, or bfloat16, to which A is then rounded, too;
                                     // int8 and uint8 may be mixed
  int64_t rows = 0, columns = 0;     // K, N
  Dequantization dequantization = {};
};

inline bool Supports(DType dtype) { return kFloats.Contains(dtype); }
// int4: two elements per byte, the lower half first; strides and positions count elements.
inline constexpr DTypeSet kIntegerOperands{DType::kInt8, DType::kUInt8, DType::kInt4};

// Bytes of the packed form of a K × N matrix; it wants 64-byte alignment. Throws when they overflow.
size_t PackedBytes(DType stored, int64_t k, int64_t n);
// Packs on the pool. `stored` is `dtype`, that of B, or bfloat16 for a B of float32, or int8 for one of int4.
void Pack(DType dtype, const Matrix& b, void* packed, DType stored);

// The packed form of a B of int8 or int4 for an A of floats, whatever their type.
size_t QuantizedBytes(DType stored, int64_t k, int64_t n);
void PackQuantized(DType dtype, const Matrix& b, void* packed);

// Whether the panels of a weight kept as rows [N, K] lie where those rows lie: then it can be packed in place.
bool PacksInPlace(DType dtype, int64_t k, int64_t n);
// Packs `rows` [N, K] in place, on the pool.
void PackInPlace(DType dtype, void* rows, int64_t k, int64_t n);
// Column `column` of B, K elements of its type.
void CopyColumn(const PackedMatrix& b, int64_t column, void* out);

// A has the element type of B, unless both are of kIntegerOperands, or A has floats and B, of int8 or int4, has a
// `dequantization`. `dtype` is A's and, without `b_dtype`, B's. They use the pool, and C may not overlap A or B.
void Multiply(const Matrix& a, const PackedMatrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const Result& c,
              const Epilogue& epilogue = {}, const Dequantization& dequantization = {});

}  // namespace npu::gemm
