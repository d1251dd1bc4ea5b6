// From a tile of sums to C.
#pragma once

#include <algorithm>
#include <cstdint>

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

template <class T>
void StoreTileAs(const float* tile, int64_t rows, int64_t columns, int64_t m0, int64_t n0, const Result& c,
                 const Epilogue& epilogue) {
  const Addend& addend = epilogue.addend;
  T* out = static_cast<T*>(c.data) + m0 * c.row_stride + n0;
  for (int64_t r = 0; r < rows; ++r, tile += kPanelColumns, out += c.row_stride) {
    if (epilogue.alpha == 1.0f && !addend.data) {
      if (columns == kPanelColumns) {
        FromFloat(tile, out, kPanelColumns);
      } else {
        FromFloat(tile, out, columns);
      }
      continue;
    }
    float sums[kPanelColumns];
    for (int64_t j = 0; j < kPanelColumns; ++j) sums[j] = epilogue.alpha * tile[j];
    if (addend.data) {
      const int64_t offset = (m0 + r) * addend.row_stride + n0 * addend.column_stride;
      DispatchFloats("Gemm", addend.dtype, [&](auto type) {
        AddRow(static_cast<const decltype(type)*>(addend.data) + offset, addend.column_stride, addend.scale, columns,
               sums);
      });
    }
    FromFloat(sums, out, columns);
  }
}

}  // namespace internal

// Writes the first rows × columns of tile[][kPanelColumns] to C at (m0, n0): rounded once.
inline void StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t m0, int64_t n0, const Result& c,
                      const Epilogue& epilogue) {
  DispatchFloats("Gemm", c.dtype,
                 [&](auto type) { internal::StoreTileAs<decltype(type)>(tile, rows, columns, m0, n0, c, epilogue); });
}

}  // namespace npu::gemm
