// From a tile of sums to C.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::gemm {

// A finished block of sums, [rows][kPanelColumns], for C from (m0, n0) on.
struct Tile {
  float* sums = nullptr;
  int64_t rows = 0, columns = 0, m0 = 0, n0 = 0;
  const int32_t* column_sums = nullptr;  // of the panel, when the sums are integers
};

// How the integers that were multiplied differ from the operands.
struct StoredIntegers {
  int32_t a_shift = 0, b_shift = 0;   // what was added to A, and what was taken from B
  int64_t depth = 0;
  const int32_t* row_sums = nullptr;  // of A as given; null when B has no zero point and no shift
};

// Writes the tile to C and spoils it. `integers` is null for sums of floats.
void StoreTile(const Tile& tile, const Result& c, const Epilogue& epilogue, const StoredIntegers* integers);

// Rounds whole rows of a tile to bfloat16 by the instruction for it; false where there is none.
bool RoundRowsToBf16(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride);

}  // namespace npu::gemm
