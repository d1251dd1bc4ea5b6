// Stores a tile of sums to C.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::gemm {

namespace internal {

// sums[j] += scale * addend[j * stride]
template <class T>
void AddRow(const T* addend, int64_t stride, float scale, int64_t columns, float* sums) {
  if (stride == 1) {
    float values[kPanelColumns];
    ToFloat(addend, values, columns);
    for (int64_t j = 0; j < columns; ++j) sums[j] += scale * values[j];
  } else {
    for (int64_t j = 0; j < columns; ++j) sums[j] += scale * ToFloat(addend[j * stride]);
  }
}

// Rounds whole rows of a tile to bfloat16 with the native instruction; false if there is none.
bool RoundRowsToBf16(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride);

template <class T>
void RoundRows(const float* tile, int64_t rows, int64_t columns, T* out, int64_t row_stride) {
  if (columns == kPanelColumns) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (RoundRowsToBf16(tile, rows, out, row_stride)) return;
    }
    for (int64_t r = 0; r < rows; ++r) FromFloat(tile + r * kPanelColumns, out + r * row_stride, kPanelColumns);
  } else {
    for (int64_t r = 0; r < rows; ++r) FromFloat(tile + r * kPanelColumns, out + r * row_stride, columns);
  }
}

// tile[r][j] = alpha * tile[r][j] + addend
inline void ScaleAndAdd(float* tile, int64_t rows, int64_t columns, int64_t m0, int64_t n0, const Epilogue& epilogue) {
  const Addend& addend = epilogue.addend;
  if (epilogue.alpha != 1.0f)
    for (int64_t i = 0; i < rows * kPanelColumns; ++i) tile[i] *= epilogue.alpha;
  if (!addend.data) return;
  DispatchFloats("Gemm", addend.dtype, [&](auto type) {
    using T = decltype(type);
    const T* row = static_cast<const T*>(addend.data) + m0 * addend.row_stride + n0 * addend.column_stride;
    for (int64_t r = 0; r < rows; ++r, row += addend.row_stride)
      AddRow(row, addend.column_stride, addend.scale, columns, tile + r * kPanelColumns);
  });
}

}  // namespace internal

// Writes the first rows × columns of tile[][kPanelColumns] to C at (m0, n0), rounded once. Overwrites the tile.
inline void StoreTile(float* tile, int64_t rows, int64_t columns, int64_t m0, int64_t n0, const Result& c,
                      const Epilogue& epilogue) {
  internal::ScaleAndAdd(tile, rows, columns, m0, n0, epilogue);
  DispatchFloats("Gemm", c.dtype, [&](auto type) {
    using T = decltype(type);
    internal::RoundRows(tile, rows, columns, static_cast<T*>(c.data) + m0 * c.row_stride + n0, c.row_stride);
  });
}

}  // namespace npu::gemm
