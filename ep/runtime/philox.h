// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011): each random word is
// a function of its index, so that it can be computed again, in any order and on any thread.
#pragma once

#include <cstdint>

namespace npu {

struct Philox {
  uint64_t seed = 0;    // the key
  uint64_t offset = 0;  // the upper half of the counter, so that different offsets give streams without overlap

  // Words [4 * first, 4 * (first + blocks)) of the stream. Never inlined: it is long, and a distribution calls it for
  // every type.
  [[gnu::noinline]] void Fill(uint64_t first, int64_t blocks, uint32_t* __restrict words) const {
#pragma omp simd
    for (int64_t i = 0; i < blocks; ++i) {
      const uint64_t counter = first + static_cast<uint64_t>(i);
      // 32-bit halves in 64-bit words: the multiplications need the width.
      uint64_t c0 = counter & kLow, c1 = counter >> 32, c2 = offset & kLow, c3 = offset >> 32;
      uint64_t k0 = seed & kLow, k1 = seed >> 32;
#pragma GCC unroll 10
      for (int round = 0; round < 10; ++round) {
        const uint64_t a = c0 * 0xD2511F53u, b = c2 * 0xCD9E8D57u;
        c0 = (b >> 32) ^ c1 ^ k0;
        c1 = b & kLow;
        c2 = (a >> 32) ^ c3 ^ k1;
        c3 = a & kLow;
        k0 = (k0 + 0x9E3779B9u) & kLow;
        k1 = (k1 + 0xBB67AE85u) & kLow;
      }
      words[4 * i] = static_cast<uint32_t>(c0);
      words[4 * i + 1] = static_cast<uint32_t>(c1);
      words[4 * i + 2] = static_cast<uint32_t>(c2);
      words[4 * i + 3] = static_cast<uint32_t>(c3);
    }
  }

 private:
  static constexpr uint64_t kLow = 0xffffffffu;
};

}  // namespace npu
