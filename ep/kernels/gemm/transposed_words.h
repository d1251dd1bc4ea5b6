// Matrices that lie by columns, as weights of torch do, become panels: 32 bits along K at a time, in vectors.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/vector.h"
#include "ep/kernels/transposed_block.h"

namespace npu::gemm {

// Word i of column j becomes out[i * kPanelColumns + j], zero if there is no such column. `column_bytes` lie between
// columns. Returns false, and has written nothing, where columns do not begin at whole words.
inline bool PackWords(const void* columns, int64_t column_bytes, int64_t count, int64_t words, void* out) {
  constexpr int64_t kWord = sizeof(float);  // moved bit by bit
  if (reinterpret_cast<uintptr_t>(columns) % kWord != 0 || column_bytes % kWord != 0) return false;
  simd::TransposeMatrix(static_cast<const float*>(columns), column_bytes / kWord, count, words,
                        static_cast<float*>(out), kPanelColumns, kPanelColumns);
  return true;
}

}  // namespace npu::gemm
