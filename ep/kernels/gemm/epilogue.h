// Stores a tile of sums to C.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::gemm {

// A finished block of sums, [rows][kPanelColumns], whose position in C is (m0, n0).
struct Tile {
  float* sums = nullptr;
  int64_t rows = 0, columns = 0, m0 = 0, n0 = 0;
  const int32_t* column_sums = nullptr;  // of the panel, if the sums are integers
};

// The differences between the multiplied integers and the operands.
struct StoredIntegers {
  int32_t a_shift = 0, b_shift = 0;  // added to A, subtracted from B
  int64_t depth = 0;
  const int32_t* row_sums = nullptr;  // of the operand A; null if B has neither zero point nor shift
};

// Writes the tile to C and overwrites the tile. `integers` is null for float sums.
void StoreTile(const Tile& tile, const Result& c, const Epilogue& epilogue, const StoredIntegers* integers);

// Rounds whole rows of a tile to bfloat16 with the native instruction; false if there is none.
bool RoundRowsToBf16(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride);

}  // namespace npu::gemm
