// A B of 8- or 4-bit integers for an A of floats: kept as integers, in one layout for every type of A, and turned into
// a panel of that type where it is multiplied.
//
// A panel has stored rows of two rows of K, interleaved as those of bfloat16 are: [K/2][columns][2]. Of 4-bit integers
// a byte holds the elements at one place of two such rows, the first in its lower half, both plus 8. Rows and columns
// that pad a panel are arbitrary.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/packing.h"

namespace npu::gemm {

inline constexpr int64_t kStoredElements = 2 * kPanelColumns;  // of a stored row

// Bytes of `depth` rows of a panel of `bits`-bit integers. Panels can be read from every multiple of 4 rows on.
inline int64_t QuantizedPanelBytes(int bits, int64_t depth) {
  return (depth + 3) / 4 * (2 * kStoredElements * bits / 8);
}

// Packs rows [k0, k0 + depth) of panel `panel` of a B of int8 or int4; writes QuantizedPanelBytes.
void PackQuantizedPanel(DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out);

// The format of panels that an A of `dtype` is multiplied with.
PanelFormat ExpandedFormat(DType dtype);

// tile[rows][kPanelColumns] += rows of bfloat16 times stored rows [begin, end) of one group, dequantised in registers:
// for few rows, where a panel would be written only to be read once. Stored row 0 is where the sliver begins.
using StoredDotFunction = void (*)(const Sliver& a, const uint8_t* stored, int64_t begin, int64_t end,
                                   const float* offset, const float* scale, float* tile);
// Null if there is none for so many rows, or none on this machine.
StoredDotFunction SelectStoredDot(int bits, bool has_offset, int64_t rows);

// The scales or offsets of the columns of one panel, in one group.
template <class T>
struct GroupValues {
  const T* data;
  int64_t stride;  // between columns

  // Of the columns from n0 on, which begins a panel; `panel` is the dequantisation's scale_panel or offset_panel.
  static GroupValues At(const Dequantization& from, const void* values, int64_t panel, int64_t group, int64_t n0) {
    const T* data = static_cast<const T*>(values);
    if (panel != 0) return {data + n0 / kPanelColumns * panel + group * kPanelColumns, 1};
    return {data + group * from.group_stride + n0 * from.column_stride, from.column_stride};
  }
};

// Turns stored rows into panels of ExpandedFormat(dtype), or multiplies them as they are.
class PanelExpander {
 public:
  PanelExpander(DType dtype, int bits, const Dequantization& dequantization)
      : dtype_(dtype), bits_(bits), from_(dequantization) {}

  // Rows [k0, k0 + depth) of a panel whose columns are [n0, n0 + columns) of B; `stored` is where they begin. Writes
  // PanelBytes(ExpandedFormat(dtype), depth).
  void Expand(const void* stored, int64_t n0, int64_t columns, int64_t k0, int64_t depth, void* out);

  // Whether Multiply serves these operands; `depth` is all of K.
  static bool Multiplies(DType dtype, int bits, const Dequantization& from, int64_t rows, int64_t depth);
  // Adds the product of a sliver and such rows to a tile; k0 is even.
  void Multiply(const Sliver& a, int64_t rows, const void* stored, int64_t n0, int64_t columns, int64_t k0,
                int64_t depth, float* tile);

 private:
  void LoadScales(int64_t n0, int64_t columns, int64_t first_group, int64_t second_group);
  bool DequantizeToBf16(const uint8_t* stored, int64_t begin, int64_t rows, BFloat16* out) const;
  void Dequantize(const uint8_t* stored, int64_t begin, int64_t rows, float* values) const;

  DType dtype_;
  int bits_;
  Dequantization from_;
  // Of the elements of one stored row.
  alignas(64) float scale_[kStoredElements] = {};
  alignas(64) float offset_[kStoredElements] = {};
};

}  // namespace npu::gemm
