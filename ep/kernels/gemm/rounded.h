// A times a quantised B by products of integers: exact sums of a group of K are scaled as floats. A has integers, or
// floats whose rows are rounded to int8 with a scale for each group. For weights that are read faster than they are
// dequantised.
#pragma once

#include "ep/kernels/gemm/epilogue.h"

namespace npu::gemm {

// Whether `rows` of A of `dtype` are multiplied by products of integers: they have integers, or are to be rounded to
// them, the groups begin where the layout's rows of four do, and products of floats do not take less time.
bool MultipliesIntegers(DType dtype, int64_t rows, const Dequantization& dequantization);

// `packed_b` is null or as PackQuantized writes it.
void MultiplyRounded(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b,
                     const Result& c, const Epilogue& epilogue, const Dequantization& dequantization);

}  // namespace npu::gemm
