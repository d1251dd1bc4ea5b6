// What the tile emulator counts: the facts on which the speed of tile code depends, where no tile registers are at
// hand. Decision 0020 says which numbers kernels aim at.
#pragma once

#include <cstdint>

struct TileCounts {
  int64_t products = 0, stores = 0;
  int64_t loads = 0;         // tileloadd
  int64_t hinted_loads = 0;  // tileloaddt1, which reads past the L1 cache
  int64_t lines = 0;         // cache lines that all loads read
  // Loads without the hint of what is among the last 48 tiles, of 1 KB each, that were loaded so: the size of an L1
  // cache.
  int64_t loads_from_l1 = 0;
  // The most products between two stores of one thread, or before its first since ldtilecfg. A step of 2 × 2 tiles is
  // four products.
  int64_t most_products_without_store = 0;
  // Products whose thread has loaded a tile since its last product: one of each step, if loads come before products.
  int64_t products_after_loads = 0;
  // Products of a thread since whose last product its vector registers have changed: other work lies between the two.
  int64_t products_after_vectors = 0;
};

// Of all threads since the last call. Programs look it up (dlsym): only a process with the emulator has it.
extern "C" __attribute__((visibility("default"))) TileCounts npu_take_tile_counts();
