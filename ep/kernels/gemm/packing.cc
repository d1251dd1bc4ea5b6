#include "ep/kernels/gemm/packing.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/next_panel.h"
#include "ep/kernels/gemm/split_float16.h"
#include "ep/kernels/gemm/transposed_words.h"

namespace npu::gemm {

namespace {

// Rows that are transposed at a time: their destination stays in the L1 cache.
constexpr int64_t kTransposeRows = 64;

// out[i][j] = at(i, j) for the first `columns` of kPanelColumns, else 0; reads memory sequentially.
template <class Stored, class At>
void FillRows(const At& at, bool along_rows, int64_t columns, int64_t rows, Stored* out) {
  if (along_rows) {
    for (int64_t i = 0; i < rows; ++i, out += kPanelColumns) {
      if (columns == kPanelColumns) {
        for (int64_t j = 0; j < kPanelColumns; ++j) out[j] = at(i, j);
      } else {
        for (int64_t j = 0; j < columns; ++j) out[j] = at(i, j);
        std::fill(out + columns, out + kPanelColumns, Stored{});
      }
    }
    return;
  }
  for (int64_t begin = 0; begin < rows; begin += kTransposeRows) {
    const int64_t end = std::min(rows, begin + kTransposeRows);
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = begin; i < end; ++i) out[i * kPanelColumns + j] = at(i, j);
    for (int64_t j = columns; j < kPanelColumns; ++j)
      for (int64_t i = begin; i < end; ++i) out[i * kPanelColumns + j] = Stored{};
  }
}

// Rows of a whole panel, `row` elements apart.
template <class T>
void CopyRows(const T* b, int64_t row, int64_t depth, T* out) {
  for (int64_t k = 0; k < depth; ++k, b += row, out += kPanelColumns) {
    PrefetchRowOfNextPanel(b);
    std::memcpy(out, b, kPanelColumns * sizeof(T));
  }
}

// Columns of singles, as PackWords takes them; returns how many rows it has packed.
int64_t PackColumnsOfSingles(const uint32_t* b, int64_t column, int64_t columns, int64_t depth, uint32_t* out) {
  return PackWords(b, column * static_cast<int64_t>(sizeof(*b)), columns, depth, out) ? depth : 0;
}
int64_t PackColumnsOfSingles(const uint16_t* b, int64_t column, int64_t columns, int64_t depth, uint16_t* out) {
  constexpr int64_t kPairs = kLanes;  // at a time
  uint32_t pairs[kPairs * kPanelColumns];
  for (int64_t k = 0; k + 1 < depth; k += 2 * kPairs) {
    const int64_t some = std::min(kPairs, (depth - k) / 2);
    if (!PackWords(b + k, column * static_cast<int64_t>(sizeof(*b)), columns, some, pairs)) return 0;
    for (int64_t i = 0; i < some; ++i, out += 2 * kPanelColumns) {
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        const uint32_t pair = pairs[i * kPanelColumns + j];
        out[j] = static_cast<uint16_t>(pair);
        out[j + kPanelColumns] = static_cast<uint16_t>(pair >> 16);
      }
    }
  }
  return depth / 2 * 2;
}

// `b` points to the panel's first element.
template <class T>
void PackSingles(const T* b, const Matrix& m, int64_t columns, int64_t depth, T* out) {
  const int64_t row = m.row_stride, column = m.column_stride;
  if (column == 1) {
    if (columns == kPanelColumns) return CopyRows(b, row, depth, out);
    FillRows([=](int64_t k, int64_t j) { return b[k * row + j]; }, true, columns, depth, out);
  } else {
    const int64_t done = row == 1 ? PackColumnsOfSingles(b, column, columns, depth, out) : 0;
    FillRows([=](int64_t k, int64_t j) { return b[(done + k) * row + j * column]; }, false, columns, depth - done,
             out + done * kPanelColumns);
  }
}

// Rows 2i and 2i + 1 of b become row i of pairs; the partner of an odd last row is zero.
void PackPairs(const uint16_t* b, const Matrix& m, int64_t columns, int64_t depth, uint32_t* out) {
  const int64_t row = m.row_stride, column = m.column_stride;
  const auto pair = [](uint32_t low, uint32_t high) { return low | high << 16; };
  const int64_t pairs = depth / 2;
  if (column == 1) {
    for (int64_t i = 0; i < pairs; ++i) {
      const uint16_t *const first = b + 2 * i * row, *const second = first + row;
      PrefetchRowOfNextPanel(first);
      PrefetchRowOfNextPanel(second);
      FillRows([=](int64_t, int64_t j) { return pair(first[j], second[j]); }, true, columns, 1,
               out + i * kPanelColumns);
    }
  } else if (row != 1 || !PackWords(b, column * static_cast<int64_t>(sizeof(*b)), columns, pairs, out)) {
    const auto at = [=](int64_t i, int64_t j) {
      return pair(b[2 * i * row + j * column], b[(2 * i + 1) * row + j * column]);
    };
    FillRows(at, false, columns, pairs, out);
  }
  if (depth % 2 != 0) {
    const uint16_t* last = b + (depth - 1) * row;
    FillRows([=](int64_t, int64_t j) { return uint32_t{last[j * column]}; }, true, columns, 1,
             out + pairs * kPanelColumns);
  }
}

template <class From, class To>
To Converted(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<To, float>) {
    return ToFloat(x);
  } else {
    To rounded;
    FromFloat(&x, &rounded, 1);
    return rounded;
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
    } else if constexpr (std::is_same_v<To, float>) {
      ToFloat(a, out, kChunk);
    } else {
      FromFloat(a, out, kChunk);
    }
  }
  if (depth == 0) return;
  for (int64_t i = 0; i < depth; ++i) out[i] = Converted<From, To>(a[i * stride]);
  std::fill(out + depth, out + kChunk, To{});
}

// The same for rows that are a transposed matrix's columns, `stride` between elements: element k of all rows lies in
// one or two lines, which row by row would be fetched as often as there are rows.
template <class From, class To>
void PackColumns(const From* a, int64_t stride, int64_t rows, int64_t depth, int64_t stored_rows, To* out) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(To);
  for (; depth > 0; depth -= kChunk, a += kChunk * stride, out += stored_rows * kChunk) {
    const int64_t count = std::min(depth, kChunk);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < rows; ++r) out[r * kChunk + i] = Converted<From, To>(a[i * stride + r]);
    for (int64_t r = 0; count < kChunk && r < rows; ++r)
      std::fill(out + r * kChunk + count, out + (r + 1) * kChunk, To{});
  }
}

template <class From, class To>
void PackRows(const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows, int64_t k0, int64_t depth, To* out) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(To);
  const From* source = static_cast<const From*>(a.data) + m0 * a.row_stride + k0 * a.column_stride;
  // Lines of one row are written 64 bytes times the number of rows apart. With many rows these are few sets of the L1
  // cache: then some chunks of all rows at a time, in a third to half of the time for 32 rows, but slower for 12.
  constexpr int64_t kFewRows = 16;
  const int64_t at_once = stored_rows > kFewRows ? 8 * kChunk : depth;
  if (a.row_stride == 1 && a.column_stride != 1) {
    PackColumns(source, a.column_stride, rows, depth, stored_rows, out);
  } else {
    for (int64_t k = 0; k < depth; k += at_once) {
      for (int64_t r = 0; r < rows; ++r) {
        PackRow(source + r * a.row_stride + k * a.column_stride, a.column_stride, std::min(at_once, depth - k),
                stored_rows, out + k * stored_rows + r * kChunk);
      }
    }
  }
  for (int64_t k = 0; rows < stored_rows && k < depth; k += kChunk, out += stored_rows * kChunk)
    std::fill(out + rows * kChunk, out + stored_rows * kChunk, To{});
}

// The panel's part of a float32 B, rounded: [depth][columns], or [columns][depth] if B is stored by columns.
Matrix Rounded(const float* b, const Matrix& m, int64_t columns, int64_t depth, std::vector<BFloat16>& storage) {
  storage.resize(static_cast<size_t>(depth * columns));
  BFloat16* to = storage.data();
  if (m.column_stride == 1) {
    for (int64_t i = 0; i < depth; ++i) FromFloat(b + i * m.row_stride, to + i * columns, columns);
    return Matrix::RowMajor(to, depth, columns);
  }
  for (int64_t j = 0; j < columns; ++j, b += m.column_stride, to += depth) {
    if (m.row_stride == 1) {
      FromFloat(b, to, depth);
    } else {
      for (int64_t i = 0; i < depth; ++i) to[i] = Converted<float, BFloat16>(b[i * m.row_stride]);
    }
  }
  return Matrix::RowMajor(storage.data(), columns, depth).Transposed();
}

}  // namespace

PanelFormat FormatOf(DType dtype) {
  if (dtype == DType::kFloat32) return PanelFormat::kFloat32;
  if (dtype == DType::kBFloat16) return PanelFormat::kPairs;
  if (dtype == DType::kInt8 || dtype == DType::kUInt8) return PanelFormat::kQuads;
  return Features().amx_fp16 ? PanelFormat::kPairsFloat16 : PanelFormat::kFloat16;
}

int64_t PaddedDepth(PanelFormat format, int64_t k) {
  int64_t multiple = 1;
  if (format == PanelFormat::kPairs) multiple = Features().amx_bf16 ? 32 : 2;
  if (format == PanelFormat::kPairsFloat16 || format == PanelFormat::kSplitFloat16) multiple = 32;
  if (format == PanelFormat::kQuads) multiple = Features().amx_int8 ? 64 : 4;
  if (format == PanelFormat::kWords) multiple = 4;
  return (k + multiple - 1) / multiple * multiple;
}

void PackPanel(PanelFormat format, DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out) {
  if (format == PanelFormat::kQuads) return PackQuads(dtype, b, panel, k0, depth, out);
  const int64_t j0 = panel * kPanelColumns;
  const int64_t columns = std::min<int64_t>(kPanelColumns, b.columns - j0);
  const int64_t offset = k0 * b.row_stride + j0 * b.column_stride;
  if (dtype == DType::kFloat32 && format != PanelFormat::kFloat32) {
    std::vector<BFloat16> storage;
    const Matrix rounded = Rounded(static_cast<const float*>(b.data) + offset, b, columns, depth, storage);
    return PackPanel(format, DType::kBFloat16, rounded, 0, 0, depth, out);
  }
  if (format == PanelFormat::kFloat32)
    return PackSingles(static_cast<const uint32_t*>(b.data) + offset, b, columns, depth, static_cast<uint32_t*>(out));
  const uint16_t* halves = static_cast<const uint16_t*>(b.data) + offset;
  if (format == PanelFormat::kFloat16) return PackSingles(halves, b, columns, depth, static_cast<uint16_t*>(out));
  uint32_t* pairs = static_cast<uint32_t*>(out);
  PackPairs(halves, b, columns, depth, pairs);
  std::fill(pairs + (depth + 1) / 2 * kPanelColumns, pairs + PaddedDepth(format, depth) / 2 * kPanelColumns, 0u);
}

void UnpackColumn(PanelFormat format, const void* panel, int64_t j, int64_t depth, void* out) {
  const auto every_row = [&](auto* to, int64_t rows) {
    const auto* from = static_cast<decltype(to)>(const_cast<void*>(panel)) + j;
    for (int64_t i = 0; i < rows; ++i) to[i] = from[i * kPanelColumns];
  };
  if (format == PanelFormat::kFloat32) return every_row(static_cast<uint32_t*>(out), depth);
  if (format == PanelFormat::kFloat16) return every_row(static_cast<uint16_t*>(out), depth);
  // Two rows of K in one element; `out` may be unaligned.
  const auto* pairs = static_cast<const uint32_t*>(panel) + j;
  auto* halves = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < depth / 2; ++i) std::memcpy(halves + 2 * i, pairs + i * kPanelColumns, 4);
  if (depth % 2 != 0) halves[depth - 1] = static_cast<uint16_t>(pairs[depth / 2 * kPanelColumns]);
}

void PackSliver(SliverFormat format, DType dtype, const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows,
                int64_t k0, int64_t depth, void* out) {
  if (ElementBytes(format) == 1 || format == SliverFormat::kWords)
    return PackIntegerSliver(format, dtype, a, m0, rows, stored_rows, k0, depth, out);
  if (format == SliverFormat::kSplitFloat16) return PackSplitSliver(a, m0, rows, stored_rows, k0, depth, out);
  if (format == SliverFormat::kHalves && dtype == DType::kFloat32)
    return PackRows<float>(a, m0, rows, stored_rows, k0, depth, static_cast<BFloat16*>(out));
  if (format == SliverFormat::kHalves)
    return PackRows<uint16_t>(a, m0, rows, stored_rows, k0, depth, static_cast<uint16_t*>(out));
  float* floats = static_cast<float*>(out);
  if (dtype == DType::kFloat32) return PackRows<float>(a, m0, rows, stored_rows, k0, depth, floats);
  if (dtype == DType::kFloat16) return PackRows<Float16>(a, m0, rows, stored_rows, k0, depth, floats);
  PackRows<BFloat16>(a, m0, rows, stored_rows, k0, depth, floats);
}

}  // namespace npu::gemm
