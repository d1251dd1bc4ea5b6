#include "ep/kernels/gemm/packing.h"

#include <algorithm>
#include <cstring>

#include "ep/kernels/convert.h"

namespace npu::gemm {

namespace {

// Depth of a block that is transposed at once: its destination stays in L1.
constexpr int64_t kTransposeDepth = 64;

// out[k][j] = b[k][j] for `columns` columns of kPanelColumns; kInterleave 2 writes out[k / 2][j][k % 2].
template <class T, int kInterleave>
void PackElements(const T* b, int64_t row_stride, int64_t column_stride, int64_t columns, int64_t depth, T* out) {
  auto at = [&](int64_t k, int64_t j) -> T& {
    return out[(k / kInterleave * kPanelColumns + j) * kInterleave + k % kInterleave];
  };
  if (column_stride == 1) {
    for (int64_t k = 0; k < depth; ++k) {
      const T* row = b + k * row_stride;
      if (columns == kPanelColumns) {
        for (int64_t j = 0; j < kPanelColumns; ++j) at(k, j) = row[j];
      } else {
        for (int64_t j = 0; j < columns; ++j) at(k, j) = row[j];
        for (int64_t j = columns; j < kPanelColumns; ++j) at(k, j) = T{};
      }
    }
    return;
  }
  for (int64_t begin = 0; begin < depth; begin += kTransposeDepth) {
    const int64_t end = std::min(depth, begin + kTransposeDepth);
    for (int64_t j = 0; j < columns; ++j) {
      const T* column = b + j * column_stride;
      for (int64_t k = begin; k < end; ++k) at(k, j) = column[k * row_stride];
    }
    for (int64_t j = columns; j < kPanelColumns; ++j)
      for (int64_t k = begin; k < end; ++k) at(k, j) = T{};
  }
}

template <class T, int kInterleave>
void PackPanelAs(const Matrix& b, int64_t panel, int64_t k0, int64_t depth, int64_t padded, T* out) {
  const int64_t j0 = panel * kPanelColumns;
  const int64_t columns = std::min<int64_t>(kPanelColumns, b.columns - j0);
  // The rows that pad the depth, and the half row beside an odd last one.
  const int64_t whole = depth / kInterleave * kInterleave;
  std::fill(out + whole * kPanelColumns, out + padded * kPanelColumns, T{});
  const T* source = static_cast<const T*>(b.data) + k0 * b.row_stride + j0 * b.column_stride;
  PackElements<T, kInterleave>(source, b.row_stride, b.column_stride, columns, depth, out);
}

template <class From, class To>
To Converted(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else {
    return ToFloat(x);
  }
}

// One row of a sliver: `depth` elements of A become elements of `To`, chunk by chunk.
template <class From, class To>
void PackRow(const From* a, int64_t stride, int64_t depth, int64_t stored_rows, To* out) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(To);
  for (; depth >= kChunk; depth -= kChunk, a += kChunk * stride, out += stored_rows * kChunk) {
    if (stride != 1) {
      for (int64_t i = 0; i < kChunk; ++i) out[i] = Converted<From, To>(a[i * stride]);
    } else if constexpr (std::is_same_v<From, To>) {
      std::memcpy(out, a, kChunkBytes);
    } else {
      ToFloat(a, out, kChunk);
    }
  }
  if (depth == 0) return;
  for (int64_t i = 0; i < depth; ++i) out[i] = Converted<From, To>(a[i * stride]);
  std::fill(out + depth, out + kChunk, To{});
}

template <class From, class To>
void PackRows(const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows, int64_t k0, int64_t depth, To* out) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(To);
  const From* source = static_cast<const From*>(a.data) + m0 * a.row_stride + k0 * a.column_stride;
  for (int64_t r = 0; r < rows; ++r)
    PackRow(source + r * a.row_stride, a.column_stride, depth, stored_rows, out + r * kChunk);
  for (int64_t k = 0; rows < stored_rows && k < depth; k += kChunk, out += stored_rows * kChunk)
    std::fill(out + rows * kChunk, out + stored_rows * kChunk, To{});
}

}  // namespace

PanelFormat FormatOf(DType dtype) {
  if (dtype == DType::kFloat32) return PanelFormat::kFloat32;
  if (dtype == DType::kBFloat16) return PanelFormat::kPairs;
  return Features().amx_fp16 ? PanelFormat::kPairsFloat16 : PanelFormat::kFloat16;
}

int64_t PaddedDepth(PanelFormat format, int64_t k) {
  int64_t multiple = 1;
  if (format == PanelFormat::kPairs) multiple = Features().amx_bf16 ? 32 : 2;
  if (format == PanelFormat::kPairsFloat16) multiple = 32;
  return (k + multiple - 1) / multiple * multiple;
}

void PackPanel(PanelFormat format, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out) {
  const int64_t padded = PaddedDepth(format, depth);
  switch (format) {
    case PanelFormat::kFloat32:
      return PackPanelAs<uint32_t, 1>(b, panel, k0, depth, padded, static_cast<uint32_t*>(out));
    case PanelFormat::kFloat16:
      return PackPanelAs<uint16_t, 1>(b, panel, k0, depth, padded, static_cast<uint16_t*>(out));
    case PanelFormat::kPairs:
    case PanelFormat::kPairsFloat16:
      return PackPanelAs<uint16_t, 2>(b, panel, k0, depth, padded, static_cast<uint16_t*>(out));
  }
}

void PackSliver(SliverFormat format, DType dtype, const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows,
                int64_t k0, int64_t depth, void* out) {
  if (format == SliverFormat::kHalves)
    return PackRows<uint16_t>(a, m0, rows, stored_rows, k0, depth, static_cast<uint16_t*>(out));
  float* floats = static_cast<float*>(out);
  if (dtype == DType::kFloat32) return PackRows<float>(a, m0, rows, stored_rows, k0, depth, floats);
  if (dtype == DType::kFloat16) return PackRows<Float16>(a, m0, rows, stored_rows, k0, depth, floats);
  PackRows<BFloat16>(a, m0, rows, stored_rows, k0, depth, floats);
}

}  // namespace npu::gemm
