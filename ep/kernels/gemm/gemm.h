// The matrix unit: C = alpha * A * B + addend, for float32, bfloat16 and float16, accumulated in float32; for matrices
// of 8- and 4-bit integers, accumulated exactly in int32 (which wraps) and then scaled; and for float A with quantised
// B, which is dequantised panel by panel.
//
// B is packed into panels: once if it is a constant, otherwise panel by panel. The same packed form serves every number
// of rows, from a decode step (one row: B is read once, at memory bandwidth) to a prefill.
//
//   packing.h       the layouts of A and B
//   quantized.h     the layout of a quantised B for float A
//   rounded.h       the same B times A of integers, or rounded to them
//   split_float16.h float16 as products of bfloat16, for tile registers
//   microkernel.h   sliver of A × panel of B → tile, one set of functions per instruction set
//   blocking.h      how a GEMM is partitioned for the caches and the threads
//   product.h       the loops over blocks, panels and slivers
//   epilogue.h      tile → C
//   gate.h          tile of a gate and its values → C
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
  // For integer B: the number of consecutive elements of a column, and row_stride is the step between such blocks, e.g.
  // words of eight 4-bit integers along a column.
  int64_t row_block = 1;

  int64_t Offset(int64_t row, int64_t column) const {
    if (row_block == 1) return row * row_stride + column * column_stride;
    return row / row_block * row_stride + row % row_block + column * column_stride;
  }
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
  DType dtype = DType::kUndefined;  // float32, float16, bfloat16 or int8; of integer operands int32, too
  int64_t row_stride = 0;
};

// One value per row or column: data[i * stride]; a stride of 0 broadcasts. Null has no effect.
template <class T>
struct PerLine {
  const T* data = nullptr;
  int64_t stride = 0;
};

// Zero points and bias of integer operands.
struct IntegerTerms {
  PerLine<int32_t> a_zero_point = {}, b_zero_point = {};  // per row of A, per column of B; subtracted
  PerLine<int32_t> bias = {};                             // per column, added to the sums
  // Per column of B; the sum of A's row times it is subtracted from the sum, both as floats. Not of an int32 result.
  PerLine<float> b_float_zero_point = {};
};

// value = activation((alpha * sum * column_scale * row_scale + addend) * total_scale), each operation rounded to
// float32. A result of int8 is value * output_scale + output_offset, rounded half to even and saturated, NaN as 0; an
// int32 result is the sum itself. The addend may be the result's own memory.
struct Epilogue {
  float alpha = 1.0f;
  Addend addend = {};
  PerLine<float> column_scale = {}, row_scale = {};
  PerLine<float> total_scale = {};  // per row
  void (*activation)(float* values, int64_t count) = nullptr;
  PerLine<float> output_scale = {}, output_offset = {};  // per column
  IntegerTerms integers = {};
  // Not 0: B was packed by PackGated or PackQuantizedGated, and C has so many columns, silu(gate) * value, of floats.
  // Nothing else of this struct is set but scales before the addend; those of columns lie in the order of the panels.
  int64_t gated_columns = 0;

  // Adds the values of `bias` from element `first` on to the columns: int32 to the sums of integers, floats as the
  // addend.
  void AddBias(const TensorView& bias, int64_t first) {
    const char* data = bias.as<const char>() + BytesFor(bias.dtype, first);
    if (bias.dtype == DType::kInt32) {
      integers.bias = {reinterpret_cast<const int32_t*>(data), 1};
    } else {
      addend = {data, bias.dtype, 0, 1};
    }
  }
};

// The values of a quantised B for float A: (element + offset) * scale, computed in float32 and rounded to A's type; for
// float16 the sum is rounded, too. Scale and offset of element (k, n) are at [k / group * group_stride +
// n * column_stride], or as PackedScales stores them. With an A of integers, the sums of every group are exact and then
// scaled; groups have a number of rows that 4 divides.
struct Dequantization {
  const void* scale = nullptr;
  const void* offset = nullptr;     // null: none
  DType dtype = DType::kUndefined;  // of both: float32, float16 or bfloat16
  int64_t group = 0;                // rows of B that share them; 0: all
  int64_t group_stride = 0, column_stride = 0;
  // Unless it is 0, the values are as PackedScales stores them: so many for each panel of B.
  int64_t scale_panel = 0, offset_panel = 0;
  // Products of integers: each row of A is rounded to int8 with a scale of max|a| / 127 for every `group` elements, or
  // 128 with group 0, and no value of B is rounded. Groups of a number that 4 does not divide are computed as without,
  // and so is what takes less time without.
  bool round_a = false;
  int32_t a_zero_point = 0;  // subtracted from an A of integers
};

// B in panel order, as Pack writes it.
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

// Bytes of the packed form of a K × N matrix, which requires 64-byte alignment. Throws if they overflow.
size_t PackedBytes(DType stored, int64_t k, int64_t n);
// Packs on the pool. `stored` is `dtype`, B's own, or bfloat16 if B is float32, or int8 if it is int4.
void Pack(DType dtype, const Matrix& b, void* packed, DType stored);

// The same for a row-major B of floats whose columns are those of a gate and then as many values: every panel has
// kLanes columns of each, so that one tile of sums holds both. The packed matrix has GatedColumns(n) columns, some of
// them zero.
int64_t GatedColumns(int64_t n);
void PackGated(DType dtype, const Matrix& b, void* packed, DType stored);

// The packed form of an int8 or int4 B for A of any float type.
size_t QuantizedBytes(DType stored, int64_t k, int64_t n);
void PackQuantized(DType dtype, const Matrix& b, void* packed);
// The same for columns of a gate and then as many values, in panels as PackGated's. Half of the columns of a row-major
// B of int4 is an even number.
void PackQuantizedGated(DType dtype, const Matrix& b, void* packed);

// Whether the panels of a weight stored as rows [N, K] occupy the same memory as those rows: it can be packed in place.
bool PacksInPlace(DType dtype, int64_t k, int64_t n);
// Packs `rows` [N, K] in place, on the pool.
void PackInPlace(DType dtype, void* rows, int64_t k, int64_t n);
// Copies column `column` of B: K elements of its type.
void CopyColumn(const PackedMatrix& b, int64_t column, void* out);

// A has the element type of B, except that both may be any of kIntegerOperands, or B is int8 or int4 with a
// `dequantization` and A is of floats, int8 or int4. `dtype` is A's type and, without `b_dtype`, also B's. All use the
// pool; C must not overlap A or B.
void Multiply(const Matrix& a, const PackedMatrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue = {});
void Multiply(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const Result& c,
              const Epilogue& epilogue = {}, const Dequantization& dequantization = {});

}  // namespace npu::gemm
