// Windows as columns of a matrix: the right side of the product that a convolution is.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ep/kernels/convolution/padded_plane.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/elementwise/types.h"

namespace npu::convolution {

// Row (c, tap) of `columns` gets what the outputs [begin, end) read of channel c through this tap; padding reads
// `padding`. `x` has `channels` planes; rows are `pitch` elements apart. U is any type of the elements' size.
template <class U>
void ReadColumns(const Taps& taps, const U* x, int64_t channels, int64_t begin, int64_t end, U* columns, int64_t pitch,
                 U padding = U{0}) {
  const std::vector<Run> runs = taps.RunsOf(begin, end);
  WithStride(taps.stride(), [&](auto stride) {
    for (int64_t c = 0; c < channels; ++c) {
      const U* plane = x + c * taps.inputs();
      U* rows = columns + c * taps.count() * pitch - begin;
      for (const Run& run : runs) {
        U* row = rows + run.tap * pitch;
        const U* from = plane + run.position;
        U* to = row + run.first;
        std::fill(row + run.begin, to, padding);
        for (int64_t i = 0; i < run.count; ++i) to[i] = from[i * stride];
        std::fill(to + run.count, row + run.end, padding);
      }
    }
  });
}

// The transpose for one plane: adds the columns [taps, outputs] to the positions that they read. `runs` are those of
// all outputs. Sums of integers wrap.
template <class C>
void AddColumns(const Taps& taps, const std::vector<Run>& runs, const C* columns, C* plane) {
  WithStride(taps.stride(), [&](auto stride) {
    for (const Run& run : runs) {
      const C* from = columns + run.tap * taps.outputs() + run.first;
      C* out = plane + run.position;
#pragma omp simd
      for (int64_t i = 0; i < run.count; ++i)
        out[i * stride] = static_cast<C>(Modular(out[i * stride]) + Modular(from[i]));
    }
  });
}

// Elements that ReadPaddedColumns may read behind the planes and write behind the columns.
inline constexpr int64_t kColumnsSlack = 16;

// A piece of a row of columns; positions are in the padded plane.
struct ColumnBlock {
  int64_t position, to;
};

// The same from `channels` padded planes. Pieces of rows are copied in blocks of one size: each overwrites what the one
// before wrote too much, rows from first to last.
template <class U>
void ReadPaddedColumns(const PaddedPlane& padded, const U* planes, int64_t channels, int64_t begin, int64_t end,
                       U* columns, int64_t pitch) {
  constexpr int64_t kBlock = kColumnsSlack;
  std::vector<ColumnBlock> blocks;
  for (const Segment& segment : padded.SegmentsOf(begin, end))
    for (int64_t i = 0; i < segment.count; i += kBlock)
      blocks.push_back({segment.position + i, segment.first - begin + i});
  const auto read = [&](const auto& of_row) {
    for (int64_t c = 0; c < channels; ++c, planes += padded.size()) {
      for (int64_t tap = 0; tap < padded.taps(); ++tap, columns += pitch) {
        const U* from = planes + padded.offset(tap);
        for (const ColumnBlock& block : of_row)
          std::memcpy(columns + block.to, from + block.position, kBlock * sizeof(U));
      }
    }
  };
  // Of a panel of floats, mostly: the loop over its blocks would take as long as copying them.
  if (blocks.size() == 2) return read(std::array{blocks[0], blocks[1]});
  read(blocks);
}

}  // namespace npu::convolution
