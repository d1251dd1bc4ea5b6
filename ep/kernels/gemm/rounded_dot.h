// Rows of integers times a panel of stored integers (quantized.h), group by group.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/rounded_rows.h"

namespace npu::gemm {

// The scales, and the offsets or null, of one panel: rows of `stride` elements, one for each group. `first`, unless it
// is null, is what sums begin with, one for each column.
struct PanelScales {
  const float* scale = nullptr;
  const float* offset = nullptr;
  int64_t stride = 0;
  const float* first = nullptr;
};

// Of vector instructions: 24 sums of 32 registers.
inline constexpr SliverOrder kVectorSlivers{.rows = 12, .unit = 4};
// tile[results][kPanelColumns] = one such sliver times a panel.
using RoundedDotFunction = void (*)(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales,
                                    float* tile);
RoundedDotFunction SelectRoundedDot(int bits);
// Null without the dot products of ARM64.
RoundedDotFunction NeonRoundedDot(int bits);

// The same for all slivers of a block, whose tiles are order.rows * kPanelColumns apart, with the same bits: what is
// unpacked of the panel serves all of them.
using RoundedBlockFunction = void (*)(const RowRounding& a, const uint8_t* stored, const PanelScales& scales,
                                      AlignedBuffer& memory, float* tiles);
struct RoundedBlock {
  RoundedBlockFunction function = nullptr;
  SliverOrder order = kVectorSlivers;
};
// Without a function where single slivers are as fast. `integers`: A was integers.
RoundedBlock SelectRoundedBlock(int bits, int64_t rows, int64_t group, bool integers);

// Of tile registers: two tiles of 16 rows of 64 integers.
inline constexpr SliverOrder kTileSlivers{.rows = 32, .unit = 64};
// Smaller groups fill too small a part of a tile.
inline constexpr int64_t kSmallestTileGroup = 32;
// Null without tile registers, and where they take longer: few rows or small groups.
RoundedBlockFunction SelectRoundedTiles(int bits, int64_t rows, int64_t group);
// As vector instructions take them where A is the unsigned operand of VPDPBUSD.
inline constexpr SliverOrder kUnsignedRows{.rows = kVectorSlivers.rows, .unit = 4, .shift = 128};
// For rows that were floats. Without a function where VPDPBUSD is missing or single slivers are as fast.
RoundedBlock VnniRoundedBlock(int bits, int64_t rows, int64_t group);
// Without a function where AVX2 is missing.
RoundedBlock Avx2RoundedBlock(int bits);

}  // namespace npu::gemm
