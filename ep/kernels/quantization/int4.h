// Signed 4-bit integers, eight to an int32: the first in bits 0 to 3, two's complement.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace npu {

static_assert(std::endian::native == std::endian::little, "the bytes of a word are taken in the order of its nibbles");

// words[j] = the low four bits of values[8j] to values[8j + 7].
inline void PackInt4(const int8_t* __restrict values, uint32_t* __restrict words, int64_t count) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    uint64_t bytes;
    std::memcpy(&bytes, values + 8 * j, sizeof bytes);
    // Neighbours are joined: eight nibbles to four bytes, to two pairs of bytes, to a word.
    bytes &= 0x0f0f0f0f0f0f0f0full;
    bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ffull;
    bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffffull;
    words[j] = static_cast<uint32_t>(bytes | bytes >> 16);
  }
}

// values[8j] to values[8j + 7] = the nibbles of words[j].
inline void UnpackInt4(const uint32_t* __restrict words, int8_t* __restrict values, int64_t count) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    uint64_t bytes = words[j];
    bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffull;
    bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ffull;
    bytes = (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0full;
    // (n ^ 8) - 8 extends the sign; a byte of at least 0x80 never borrows from its neighbour.
    bytes = ((bytes ^ 0x0808080808080808ull) | 0x8080808080808080ull) - 0x0808080808080808ull;
    bytes ^= 0x8080808080808080ull;
    std::memcpy(values + 8 * j, &bytes, sizeof bytes);
  }
}

}  // namespace npu
