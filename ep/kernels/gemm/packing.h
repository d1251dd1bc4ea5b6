// The layouts of the packed operands.
//
// B: panels of kPanelColumns columns; within a panel, row after row of K. 16-bit types that are multiplied in pairs
// (bfloat16, and float16 on a machine with AMX-FP16) interleave two rows: [K/2][columns][2]. 8-bit integers interleave
// four, [K/4][columns][4], and are stored signed: 128 is subtracted from unsigned ones. They are preceded by the sums
// of the panel's columns in int32, which the zero points of A are multiplied with. Panels are padded with zero columns
// and rows.
//
// A: slivers of a few rows, cut along K into chunks of one cache line (64 bytes) per row: [K/chunk][rows][64 bytes].
// Packing is a copy, not a transposition; a tile register reads the same chunks.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::gemm {

enum class PanelFormat {
  kFloat32,
  kFloat16,       // [K][columns]
  kPairs,         // [K/2][columns][2], bfloat16
  kPairsFloat16,  // idem, float16: AMX-FP16 only
  kQuads,         // [K/4][columns][4], int8, preceded by the column sums
  kSplitFloat16,  // float16 as three bfloat16, made of kFloat16 where it is multiplied: split_float16.h
  kWords,         // [K/2][columns][2], int16, made of kQuads where it is multiplied
};

PanelFormat FormatOf(DType dtype);

// The number of stored rows of B: a multiple of what the widest micro-kernel of this machine consumes at a time.
int64_t PaddedDepth(PanelFormat format, int64_t k);
inline int64_t ElementBytes(PanelFormat format) {
  if (format == PanelFormat::kSplitFloat16) return 6;
  return format == PanelFormat::kFloat32 ? 4 : format == PanelFormat::kQuads ? 1 : 2;
}
// Rows of B per stored row, and bytes per stored row.
inline int64_t RowDepth(PanelFormat format) {
  if (format == PanelFormat::kQuads) return 4;
  return format == PanelFormat::kFloat32 || format == PanelFormat::kFloat16 ? 1 : 2;
}
// Bytes before the first row of a panel.
inline int64_t HeaderBytes(PanelFormat format) { return format == PanelFormat::kQuads ? kPanelColumns * 4 : 0; }
inline int64_t RowBytes(PanelFormat format) { return kPanelColumns * ElementBytes(format) * RowDepth(format); }
inline int64_t PanelCount(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }
inline int64_t PanelBytes(PanelFormat format, int64_t depth) {
  return HeaderBytes(format) + PaddedDepth(format, depth) * kPanelColumns * ElementBytes(format);
}

// Packs rows [k0, k0 + depth) of panel `panel` of a B of `dtype`, rounding float32 if the format has fewer bits; writes
// PanelBytes(format, depth).
void PackPanel(PanelFormat format, DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out);
void PackQuads(DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out);
// Subtracted from the elements of an integer B to store them signed.
inline int32_t StoredShift(DType dtype) { return dtype == DType::kUInt8 ? 128 : 0; }

// `depth` rows of a panel of kQuads, without its header, become one of kWords. Where WordKernel is not null.
void WidenQuads(const void* quads, int64_t depth, void* out);

// Copies column j of a panel, `depth` elements.
void UnpackColumn(PanelFormat format, const void* panel, int64_t j, int64_t depth, void* out);

// The element type of a packed A.
enum class SliverFormat {
  kFloat32,
  kHalves,         // 16-bit elements unconverted, or float32 rounded to bfloat16
  kBytes,          // 8-bit integers unconverted
  kUnsignedBytes,  // uint8 unconverted, int8 plus 128
  kSignedBytes,    // int8 unconverted, uint8 less 128
  kSplitFloat16,   // float16 as three bfloat16, each in a chunk of its own: split_float16.h
  kWords,          // 8-bit integers as int16
};

inline constexpr int64_t kChunkBytes = 64;
inline int64_t ElementBytes(SliverFormat format) {
  if (format == SliverFormat::kSplitFloat16) return 6;
  if (format == SliverFormat::kHalves || format == SliverFormat::kWords) return 2;
  return format == SliverFormat::kFloat32 ? 4 : 1;
}
// Whether a sliver stores elements of `dtype` unconverted, so that rows can be read in place.
inline bool HoldsAsIs(SliverFormat format, DType dtype) {
  switch (format) {
    case SliverFormat::kFloat32:
      return dtype == DType::kFloat32;
    case SliverFormat::kHalves:
      return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    case SliverFormat::kBytes:
      return dtype == DType::kInt8 || dtype == DType::kUInt8;
    case SliverFormat::kUnsignedBytes:
      return dtype == DType::kUInt8;
    case SliverFormat::kSignedBytes:
      return dtype == DType::kInt8;
    case SliverFormat::kSplitFloat16:
    case SliverFormat::kWords:
      return false;
  }
  return false;
}
// Added to the elements of an integer A in a sliver.
inline int32_t SliverShift(SliverFormat format, DType dtype) {
  if (format == SliverFormat::kUnsignedBytes && dtype != DType::kUInt8) return 128;
  return format == SliverFormat::kSignedBytes && dtype == DType::kUInt8 ? -128 : 0;
}
inline int64_t ChunkDepth(SliverFormat format) {
  return format == SliverFormat::kSplitFloat16 ? 32 : kChunkBytes / ElementBytes(format);
}
inline int64_t SliverBytes(SliverFormat format, int64_t rows, int64_t depth) {
  const int64_t chunk = ChunkDepth(format);
  return (depth + chunk - 1) / chunk * chunk * ElementBytes(format) * rows;
}

// Packs rows [m0, m0 + rows) and columns [k0, k0 + depth) of A into a sliver of `stored_rows` >= rows rows; padding is
// zero.
void PackSliver(SliverFormat format, DType dtype, const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows,
                int64_t k0, int64_t depth, void* out);
void PackIntegerSliver(SliverFormat format, DType dtype, const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows,
                       int64_t k0, int64_t depth, void* out);

// Sums of `count` rows of an integer A, starting at row m0.
void SumRows(DType dtype, const Matrix& a, int64_t m0, int64_t count, int32_t* out);

}  // namespace npu::gemm
