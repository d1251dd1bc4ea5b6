// Unsigned integers of 2, 4 or 8 bits, the first in the lowest bits of a byte, as onnxruntime's tools write weights.
// They are kept as int4 or int8, less the middle of their range; zero points make up for that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/runtime/dtype.h"

namespace npu {

inline int BitsAt(const uint8_t* row, int64_t bits, int64_t i) {
  return (row[i * bits / 8] >> (i * bits % 8)) & ((1 << bits) - 1);
}

// 2-bit elements are kept in 4 bits.
inline DType CentredType(int64_t bits) { return bits == 8 ? DType::kInt8 : DType::kInt4; }
inline size_t CentredBytes(int64_t bits, int64_t bytes) { return static_cast<size_t>(bits == 2 ? 2 * bytes : bytes); }

// The kept form of `bytes` bytes.
inline void CentreBits(int64_t bits, const uint8_t* from, int64_t bytes, uint8_t* to) {
  if (bits == 2) {
    for (int64_t i = 0; i < bytes; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int low = (from[i] >> (4 * half)) & 3, high = (from[i] >> (4 * half + 2)) & 3;
        to[2 * i + half] = static_cast<uint8_t>(((low - 2) & 15) | ((high - 2) & 15) << 4);
      }
    }
    return;
  }
  const uint8_t flip = bits == 4 ? 0x88 : 0x80;
  for (int64_t i = 0; i < bytes; ++i) to[i] = from[i] ^ flip;
}

}  // namespace npu
