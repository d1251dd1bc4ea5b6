// The matrix unit: C = alpha * A * B + addend, for float32, bfloat16 and float16, accumulated in float32; and for
// matrices of 8- and 4-bit integers, accumulated exactly in int32, which wraps, and then scaled.
//
// B is packed into panels, once when it is a constant and panel by panel when it is not; the one packed form serves
// every number of rows, from a decode step (one row: B is read once, at memory bandwidth) to a prefill.
//
//   packing.h       the layouts of A and B
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

// B in panel order: what Pack wrote.
struct PackedMatrix {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;   // of A
  DType stored = DType::kUndefined;  // of the elements: `dtype`, or bfloat16, to which A is then rounded, too;
                                     // int8 and uint8 may be mixed
  int64_t rows = 0, columns = 0;     // K, N
};

inline bool Supports(DType dtype) { return kFloats.Contains(dtype); }
// int4: two elements per byte, the lower half first; strides and positions count elements.
inline constexpr DTypeSet kIntegerOperands{DType::kInt8, DType::kUInt8, DType::kInt4};

// Bytes of the packed form of a K × N matrix; it wants 64-byte alignment. Throws when they overflow.
size_t PackedBytes(DType stored, int64_t k, int64_t n);
// Packs on the pool. `stored` is `dtype`, that of B, or bfloat16 for a B of float32, or int8 for one of int4.
void Pack(DType dtype, const Matrix& b, void* packed, DType stored);

// Whether the panels of a weight kept as rows [N, K] lie where those rows lie: then it can be packed in place.
bool PacksInPlace(DType dtype, int64_t k, int64_t n);
// Packs `rows` [N, K] in place, on the pool.
void PackInPlace(DType dtype, void* rows, int64_t k, int64_t n);
// Column `column` of B, K elements of its type.
void CopyColumn(const PackedMatrix& b, int64_t column, void* out);

// A has the element type of B, but for integers, where both are one of kIntegerOperands; `dtype` is A's and, without
// `b_dtype`, B's. They use the pool, and C may not overlap A or B.
void Multiply(const Matrix& a, const PackedMatrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const Result& c,
              const Epilogue& epilogue = {});

}  // namespace npu::gemm
