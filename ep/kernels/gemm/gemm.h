// The matrix unit: C = alpha * A * B + addend, for float32, bfloat16 and float16, accumulated in float32.
//
// B is packed into panels: once if it is a constant, otherwise panel by panel. The same packed form serves every number
// of rows, from a decode step (one row: B is read once, at memory bandwidth) to a prefill.
//
//   packing.h       the layouts of A and B
//   microkernel.h   sliver of A × panel of B → tile, one set of functions per instruction set
//   blocking.h      how a GEMM is partitioned for the caches and the threads
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

// Added to the product: element (i, j) of `scale * addend`; a stride of 0 broadcasts. Null adds nothing.
struct Addend {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;  // float32, float16 or bfloat16
  int64_t row_stride = 0, column_stride = 0;
  float scale = 1.0f;
};

struct Result {
  void* data = nullptr;
  DType dtype = DType::kUndefined;  // float32, float16 or bfloat16
  int64_t row_stride = 0;
};

struct Epilogue {
  float alpha = 1.0f;
  Addend addend;
};

// B in panel order, as Pack writes it.
struct PackedMatrix {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;   // of A
  DType stored = DType::kUndefined;  // of the elements: `dtype`, or bfloat16, to which A is then rounded, too
  int64_t rows = 0, columns = 0;     // K, N
};

inline bool Supports(DType dtype) { return kFloats.Contains(dtype); }

// Bytes of the packed form of a K × N matrix, which requires 64-byte alignment. Throws if they overflow.
size_t PackedBytes(DType stored, int64_t k, int64_t n);
// Packs on the pool. `stored` is `dtype`, B's own, or bfloat16 if B is float32.
void Pack(DType dtype, const Matrix& b, void* packed, DType stored);

// Whether the panels of a weight stored as rows [N, K] occupy the same memory as those rows: it can be packed in place.
bool PacksInPlace(DType dtype, int64_t k, int64_t n);
// Packs `rows` [N, K] in place, on the pool.
void PackInPlace(DType dtype, void* rows, int64_t k, int64_t n);
// Copies column `column` of B: K elements of its type.
void CopyColumn(const PackedMatrix& b, int64_t column, void* out);

// A has the element type of B. Both functions use the pool; C must not overlap A or B.
void Multiply(const Matrix& a, const PackedMatrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue = {});

}  // namespace npu::gemm
