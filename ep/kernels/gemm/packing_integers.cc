// Panels and slivers of 8- and 4-bit integers.
#include <algorithm>
#include <cstring>

#include "ep/kernels/gemm/elements.h"
#include "ep/kernels/gemm/next_panel.h"
#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/gemm/transposed_words.h"

namespace npu::gemm {

namespace {

// Rows of K that are transposed at once: their destination stays in the first-level cache.
constexpr int64_t kTransposeRows = 128;

// From row `done` on, a multiple of 4.
template <class Elements>
void FillQuads(const Elements& b, const Matrix& m, int32_t shift, int64_t columns, int64_t done, int64_t depth,
               int8_t* quads) {
  const auto put = [&](int64_t k, int64_t j) {
    quads[(k / 4 * kPanelColumns + j) * 4 + k % 4] = static_cast<int8_t>(b[m.Offset(k, j)] - shift);
  };
  if (m.column_stride == 1) {
    for (int64_t k = done; k < depth; ++k)
      for (int64_t j = 0; j < columns; ++j) put(k, j);
    return;
  }
  for (int64_t begin = done; begin < depth; begin += kTransposeRows)
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t k = begin; k < std::min(depth, begin + kTransposeRows); ++k) put(k, j);
}

// Four bytes at a time, where rows or columns lie side by side; returns how many rows that were.
int64_t PackBytes(const uint8_t* b, const Matrix& m, int32_t shift, int64_t columns, int64_t depth, int8_t* quads) {
  const uint32_t flip = static_cast<uint32_t>(shift) * 0x01010101u;  // subtracting 128 flips the first bit of a byte
  const int64_t row = m.row_stride, words = depth / 4;
  uint32_t* const out = reinterpret_cast<uint32_t*>(quads);
  if (m.column_stride == 1) {
    for (int64_t i = 0; i < words; ++i, b += 4 * row) {
      for (int64_t r = 0; r < 4; ++r) PrefetchRowOfNextPanel(b + r * row);
      for (int64_t j = 0; j < columns; ++j)
        out[i * kPanelColumns + j] =
            flip ^ (b[j] | b[row + j] << 8 | b[2 * row + j] << 16 | static_cast<uint32_t>(b[3 * row + j]) << 24);
    }
    return 4 * words;
  }
  if (row != 1 || !PackWords(b, m.column_stride, columns, words, quads)) return 0;
  for (int64_t i = 0; flip != 0 && i < words; ++i)
    for (int64_t j = 0; j < columns; ++j) out[i * kPanelColumns + j] ^= flip;
  return 4 * words;
}

// The sums of all columns. They wrap, as those of the products do.
void SumColumns(const int8_t* quads, int64_t rows, int32_t* sums) {
  VecU32 sum[2] = {};
  for (int64_t row = 0; row < rows; ++row, quads += 4 * kPanelColumns) {
    for (int v = 0; v < 2; ++v) {
      VecU32 bytes;
      std::memcpy(&bytes, quads + v * 4 * kLanes, sizeof(bytes));
      for (int byte = 0; byte < 4; ++byte) sum[v] += (VecU32)((VecI32)(bytes << (24 - 8 * byte)) >> 24);
    }
  }
  std::memcpy(sums, sum, sizeof(sum));
}

// One row of a sliver, whose elements are stored as `To`. kStride: of A's columns, unless it is 0.
template <int64_t kStride, class To, class Elements>
void FillRow(Elements a, int64_t column_stride, int64_t depth, int64_t stored_rows, To shift, To* out) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(To);
  const int64_t stride = kStride != 0 ? kStride : column_stride;
  for (; depth >= kChunk; depth -= kChunk, out += stored_rows * kChunk) {
#pragma omp simd
    for (int64_t i = 0; i < kChunk; ++i) out[i] = static_cast<To>(static_cast<To>(a[i * stride]) + shift);
    a = a + kChunk * stride;
  }
  if (depth == 0) return;
  for (int64_t i = 0; i < depth; ++i) out[i] = static_cast<To>(static_cast<To>(a[i * stride]) + shift);
  std::fill(out + depth, out + kChunk, To{0});
}

template <class To>
void FillSliver(SliverFormat format, DType dtype, const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows,
                int64_t k0, int64_t depth, To* to) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(To);
  const To shift = static_cast<To>(SliverShift(format, dtype));
  for (int64_t r = 0; r < rows; ++r) {
    WithElements(dtype, a, (m0 + r) * a.row_stride + k0 * a.column_stride, [&](auto elements) {
      (a.column_stride == 1
           ? FillRow<1, To, decltype(elements)>
           : FillRow<0, To, decltype(elements)>)(elements, a.column_stride, depth, stored_rows, shift, to + r * kChunk);
    });
  }
  for (int64_t k = 0; rows < stored_rows && k < depth; k += kChunk, to += stored_rows * kChunk)
    std::fill(to + rows * kChunk, to + stored_rows * kChunk, To{0});
}

}  // namespace

void PackQuads(DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out) {
  const int64_t j0 = panel * kPanelColumns;
  const int64_t columns = std::min<int64_t>(kPanelColumns, b.columns - j0);
  int8_t* quads = static_cast<int8_t*>(out) + HeaderBytes(PanelFormat::kQuads);
  const int64_t stored = PaddedDepth(PanelFormat::kQuads, depth);
  if (columns < kPanelColumns) {
    std::memset(quads, 0, static_cast<size_t>(stored * kPanelColumns));
  } else {
    const int64_t whole = depth / 4 * 4;
    std::memset(quads + whole * kPanelColumns, 0, static_cast<size_t>((stored - whole) * kPanelColumns));
  }
  const int32_t shift = StoredShift(dtype);
  int64_t done = 0;
  if (dtype != DType::kInt4) {
    const auto* bytes = static_cast<const uint8_t*>(b.data) + b.Offset(k0, j0);
    done = PackBytes(bytes, b, shift, columns, depth, quads);
  }
  WithElements(dtype, b, b.Offset(k0, j0),
               [&](auto elements) { FillQuads(elements, b, shift, columns, done, depth, quads); });
  SumColumns(quads, stored / 4, static_cast<int32_t*>(out));
}

void PackIntegerSliver(SliverFormat format, DType dtype, const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows,
                       int64_t k0, int64_t depth, void* out) {
  if (format == SliverFormat::kWords)
    return FillSliver(format, dtype, a, m0, rows, stored_rows, k0, depth, static_cast<int16_t*>(out));
  FillSliver(format, dtype, a, m0, rows, stored_rows, k0, depth, static_cast<uint8_t*>(out));
}

void SumRows(DType dtype, const Matrix& a, int64_t m0, int64_t count, int32_t* out) {
  for (int64_t r = 0; r < count; ++r) {
    WithElements(dtype, a, (m0 + r) * a.row_stride, [&](auto elements) {
      uint32_t sum = 0;
      for (int64_t k = 0; k < a.columns; ++k) sum += static_cast<uint32_t>(elements[k * a.column_stride]);
      out[r] = static_cast<int32_t>(sum);
    });
  }
}

}  // namespace npu::gemm
