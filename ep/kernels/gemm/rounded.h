// A times a quantised B by products of integers: exact sums of a group of K are scaled as floats. A has integers, or
// floats whose rows are rounded to int8 with a scale for each group. For weights that are read faster than they are
// dequantised.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/epilogue.h"

namespace npu::gemm {

// The most rows of A that are multiplied with a panel at once: 24 sums of 32 registers.
inline constexpr int64_t kRoundedRows = 12;

// Rows of A as int8: four integers of one row after those of the other, a scale and the sum of its integers for each
// row and group.
struct RoundedRows {
  const int8_t* values = nullptr;  // [depth / 4][rows][4], zeros at the end
  const float* scales = nullptr;   // [rows][groups]
  const int32_t* sums = nullptr;   // [rows][groups]
  int64_t rows = 0;                // at most kRoundedRows
  int64_t depth = 0;               // a multiple of 4
  int64_t groups = 0, group = 0;   // of K
  // A was integers: scales are 1, and every operation is rounded by itself, as in the reference of an operator.
  bool integers = false;
  // Subtracted from integers; unless it is 0, the last row has ones, and no result.
  int32_t zero_point = 0;
};

// The scales, and the offsets or null, of one panel: rows of `stride` elements, one for each group. `first`, unless it
// is null, is what sums begin with, one for each column.
struct PanelScales {
  const float* scale = nullptr;
  const float* offset = nullptr;
  int64_t stride = 0;
  const float* first = nullptr;
};

// tile[rows][kPanelColumns] = A times a panel in the layout of quantized.h.
using RoundedDotFunction = void (*)(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales,
                                    float* tile);
RoundedDotFunction SelectRoundedDot(int bits);
RoundedDotFunction NeonRoundedDot(int bits);  // null without the dot products of ARM64

// Whether A of `dtype` is multiplied by products of integers: it has integers, or is to be rounded to them and the
// groups begin where the layout's rows of four do.
bool MultipliesIntegers(DType dtype, const Dequantization& dequantization);

// `packed_b` is null or as PackQuantized writes it.
void MultiplyRounded(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b,
                     const Result& c, const Epilogue& epilogue, const Dequantization& dequantization);

}  // namespace npu::gemm
