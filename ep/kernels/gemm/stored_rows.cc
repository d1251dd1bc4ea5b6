// Packs integer weights as stored rows: quantized.h has their layout.
#include <algorithm>
#include <cstring>

#include "ep/kernels/gemm/elements.h"
#include "ep/kernels/gemm/next_panel.h"
#include "ep/kernels/gemm/quantized.h"

namespace npu::gemm {

namespace {

// Adding 8 to a signed 4-bit integer flips its highest bit.
constexpr uint32_t kAdded = 0x88888888u;

// A stored row as two bytes for each column.
uint16_t* PairsAt(uint8_t* out, int64_t row) { return reinterpret_cast<uint16_t*>(out + row * kStoredElements); }

// An even number of rows of bytes.
void PackByteRows(const uint8_t* b, int64_t row, int64_t columns, int64_t rows, uint8_t* out) {
  for (int64_t k = 0; k < rows; k += 2, b += 2 * row) {
    const uint8_t *const first = b, *const second = b + row;
    PrefetchRowOfNextPanel(first);
    PrefetchRowOfNextPanel(second);
    uint16_t* const pairs = PairsAt(out, k / 2);
    for (int64_t j = 0; j < columns; ++j) pairs[j] = static_cast<uint16_t>(first[j] | second[j] << 8);
  }
}

// Rows of bytes of two columns each, a multiple of 4; `row` is in bytes.
void PackHalfByteRows(const uint8_t* b, int64_t row, int64_t columns, int64_t rows, uint8_t* out) {
  for (int64_t k = 0; k < rows; k += 4, b += 4 * row) {
    for (int64_t r = 0; r < 4; ++r) PrefetchRowOfNextPanel(b + r * row);
    auto* const words = reinterpret_cast<uint32_t*>(PairsAt(out, k / 4));
    for (int64_t i = 0; i < columns / 2; ++i) {
      const uint32_t even = b[i] | static_cast<uint32_t>(b[2 * row + i]) << 8;
      const uint32_t odd = b[row + i] | static_cast<uint32_t>(b[3 * row + i]) << 8;
      // Of either, the first column in each byte's lower half, the second in its upper one.
      const auto first = [](uint32_t two) { return (two & 0xf) | (two >> 4 & 0xf0); };
      const auto second = [](uint32_t two) { return (two >> 4 & 0xf) | (two >> 8 & 0xf0); };
      words[i] = kAdded ^ (first(even) | first(odd) << 8 | second(even) << 16 | second(odd) << 24);
    }
  }
}

// Words of eight rows of one column each, whole words; `row` is in words.
void PackWordsOfColumns(const uint32_t* b, int64_t row, int64_t columns, int64_t rows, uint8_t* out) {
  for (int64_t k = 0; k < rows; k += 8, b += row) {
    PrefetchRowOfNextPanel(b);
    uint16_t *const upper = PairsAt(out, k / 4), *const lower = PairsAt(out, k / 4 + 1);
    for (int64_t j = 0; j < columns; ++j) {
      // Rows 0 1 2 3 of a stored row, from the lowest bits on, become 0 2 1 3.
      const uint32_t word = kAdded ^ ((b[j] & 0xf00ff00fu) | (b[j] & 0x00f000f0u) << 4 | (b[j] & 0x0f000f00u) >> 4);
      upper[j] = static_cast<uint16_t>(word);
      lower[j] = static_cast<uint16_t>(word >> 16);
    }
  }
}

// Whole rows by vectors, where the matrix lies so that it can be; returns how many rows, a multiple of 4.
int64_t PackInVectors(DType dtype, const Matrix& m, int64_t offset, int64_t columns, int64_t depth, uint8_t* out) {
  const auto* bytes = static_cast<const uint8_t*>(m.data);
  const int64_t row = m.row_stride;
  if (dtype == DType::kInt8) {
    if (m.column_stride != 1) return 0;
    PackByteRows(bytes + offset, row, columns, depth / 4 * 4, out);
    return depth / 4 * 4;
  }
  if (m.column_stride == 1) {
    if (row % 2 != 0 || offset % 2 != 0 || columns % 2 != 0) return 0;
    PackHalfByteRows(bytes + offset / 2, row / 2, columns, depth / 4 * 4, out);
    return depth / 4 * 4;
  }
  constexpr int64_t kInWord = 8;
  if (m.row_block != kInWord || m.column_stride != kInWord || row % kInWord != 0 || offset % kInWord != 0) return 0;
  PackWordsOfColumns(static_cast<const uint32_t*>(m.data) + offset / kInWord, row / kInWord, columns,
                     depth / kInWord * kInWord, out);
  return depth / kInWord * kInWord;
}

// The rest, element by element.
template <class Elements>
void FillStoredRows(const Elements& b, const Matrix& m, int bits, int64_t columns, int64_t done, int64_t depth,
                    uint8_t* out) {
  for (int64_t k = done; k < depth; ++k) {
    for (int64_t j = 0; j < columns; ++j) {
      const int value = b[m.Offset(k, j)];
      const int64_t row = k / 2, at = 2 * j + k % 2;
      if (bits == 8) {
        out[row * kStoredElements + at] = static_cast<uint8_t>(value);
      } else {
        out[row / 2 * kStoredElements + at] |= static_cast<uint8_t>((value + 8) << (row % 2 * 4));
      }
    }
  }
}

}  // namespace

void PackQuantizedPanel(DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out) {
  const int64_t j0 = panel * kPanelColumns;
  const int64_t columns = std::min<int64_t>(kPanelColumns, b.columns - j0);
  auto* const stored = static_cast<uint8_t*>(out);
  std::memset(stored, 0, static_cast<size_t>(QuantizedPanelBytes(BitsOf(dtype), depth)));
  const int64_t offset = b.Offset(k0, j0);
  const int64_t done = PackInVectors(dtype, b, offset, columns, depth, stored);
  WithElements(dtype, b, offset,
               [&](auto elements) { FillStoredRows(elements, b, BitsOf(dtype), columns, done, depth, stored); });
}

}  // namespace npu::gemm
