// The bits of dropout: bit i % 8 of byte i / 8 keeps element i, where word i of Philox is below the threshold.
#pragma once

#include <cstring>

#include "ep/runtime/kernel_api.h"
#include "ep/runtime/philox.h"
#include "ep/runtime/random.h"

namespace npu {

inline constexpr int64_t kDropoutUnit = 128;  // a mask is padded to a multiple of this many elements
inline constexpr int64_t kDropoutUnitBytes = kDropoutUnit / 8;

inline int64_t DropoutUnits(int64_t elements) { return elements / kDropoutUnit + (elements % kDropoutUnit != 0); }

// Units [begin, end) of a mask.
inline void FillDropoutMask(Philox generator, uint64_t threshold, uint8_t* mask, int64_t begin, int64_t end) {
  uint32_t words[kDropoutUnit];
  for (int64_t unit = begin; unit < end; ++unit) {
    generator.Fill(static_cast<uint64_t>(unit) * (kDropoutUnit / 4), kDropoutUnit / 4, words);
    for (int64_t byte = 0; byte < kDropoutUnitBytes; ++byte) {
      uint8_t bits = 0;
      for (int64_t i = 0; i < 8; ++i) bits |= static_cast<uint8_t>((words[8 * byte + i] < threshold) << i);
      mask[unit * kDropoutUnitBytes + byte] = bits;
    }
  }
}

// Enqueues the mask that drops with probability `drop`; a seed of 0 is drawn from the device's generator.
inline void LaunchDropoutMask(OpContext& ctx, const char* op, double drop, uint64_t given, uint8_t* bits,
                              int64_t units) {
  if (drop == 0) {
    ctx.Launch(op, [=] { std::memset(bits, 0xff, static_cast<size_t>(units * kDropoutUnitBytes)); });
    return;
  }
  const DrawnSeed seed = given != 0 ? given : DrawSeed(ctx.stream());
  const auto threshold = static_cast<uint64_t>((1.0 - drop) * 0x1p32);
  ctx.Launch(op, [=] {
    const Philox generator{seed.Now(), 0};
    ParallelFor(units, 64,
                [&](int64_t begin, int64_t end) { FillDropoutMask(generator, threshold, bits, begin, end); });
  });
}

}  // namespace npu
