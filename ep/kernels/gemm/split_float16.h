// float16 for tile registers that multiply bfloat16 only: an element is exactly the sum of a high and a low part in
// bfloat16, and a product of two is high · high + high · low + low · high, all but low · low, which is at most 2^-16 of
// it. So 32 rows of K are three steps of a bfloat16 product: A's chunks of high, high, low times B's of high, low,
// high.
//
// The low part of an infinity or NaN is zero, and the high parts that are multiplied with low ones have zeros in their
// place: their product appears once, in high · high.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/packing.h"

namespace npu::gemm {

inline constexpr int kSplitParts = 3;

// A panel of kFloat16, `depth` rows, becomes one of kSplitFloat16: for every 32 rows [3][16][columns][2]. Writes
// PanelBytes(kSplitFloat16, depth). Only where the kernel for it exists.
void SplitPanel(const void* panel, int64_t depth, void* out);

// Rows of a float16 A as a sliver of kSplitFloat16: for every 32 elements [3][rows][64 bytes]. As PackSliver.
void PackSplitSliver(const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows, int64_t k0, int64_t depth,
                     void* out);

}  // namespace npu::gemm
