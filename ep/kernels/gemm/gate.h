// The gate of a product whose panels hold columns of a gate beside those of the values (PackGated, PackQuantizedGated).
#pragma once

#include <cstdint>

namespace npu::gemm {

// results[r][j] = silu(row[j]) * row[j + kLanes] for j < kLanes, of rows of kPanelColumns sums. The results may lie
// where the sums do. `rough`: as exact as a result of 16 bits needs.
void GateRows(const float* sums, int64_t rows, bool rough, float* results);

}  // namespace npu::gemm
