// Scales as npu_trans_quant_param packs them into 64 bits: the low 32 hold a float32 whose lowest 13 bits are 0, bits 37
// to 45 a signed offset.
#pragma once

#include <bit>
#include <cstdint>

namespace npu {

inline float PackedScale(uint64_t packed) { return std::bit_cast<float>(static_cast<uint32_t>(packed) & 0xffffe000u); }

inline float PackedOffset(uint64_t packed) {
  const int bits = static_cast<int>(packed >> 37) & 0x1ff;
  return static_cast<float>((bits ^ 0x100) - 0x100);
}

}  // namespace npu
