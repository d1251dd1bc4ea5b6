// Planes of bytes to channels last, and back: blocks of 16 × 16 are transposed in registers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/elementwise/types.h"
#include "ep/runtime/register_transpose.h"

namespace npu::convolution {

inline constexpr int64_t kByteBlock = kBlockSide<uint8_t>;

// `rows` rows of `columns` bytes to as many columns. Rows are `from_pitch` and `to_pitch` bytes apart; every
// byte is xored with those of `flip`. The last block of a side overlaps the one before.
inline void TransposeBytes(const uint8_t* from, int64_t rows, int64_t columns, int64_t from_pitch, uint8_t flip,
                           uint8_t* to, int64_t to_pitch) {
  if (rows < kByteBlock || columns < kByteBlock) {
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) to[c * to_pitch + r] = from[r * from_pitch + c] ^ flip;
    return;
  }
  for (int64_t c = 0; c < columns; c += kByteBlock) {
    const int64_t column = std::min(c, columns - kByteBlock);
    for (int64_t r = 0; r < rows; r += kByteBlock) {
      const int64_t row = std::min(r, rows - kByteBlock);
      TransposeBlock(from + row * from_pitch + column, from_pitch, to + column * to_pitch + row, to_pitch, flip);
    }
  }
}

// Images of `channels` planes to [positions, channels], on the pool.
inline void BytesToChannelsLast(const uint8_t* from, int64_t images, int64_t channels, int64_t positions, uint8_t flip,
                                uint8_t* to) {
  constexpr int64_t kColumns = 64;
  const int64_t blocks = (positions + kColumns - 1) / kColumns;
  ParallelFor(images * blocks, std::max<int64_t>(1, kCheapGrain / (kColumns * channels)),
              [=](int64_t begin, int64_t end) {
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t image = unit / blocks * channels * positions, first = unit % blocks * kColumns;
                  TransposeBytes(from + image + first, channels, std::min(kColumns, positions - first), positions, flip,
                                 to + image + first * channels, channels);
                }
              });
}

}  // namespace npu::convolution
