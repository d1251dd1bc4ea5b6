// The choice of instructions for computing Items of one element type.
#pragma once

#include "ep/kernels/attention/core/attention.h"

namespace npu::attention {

struct Engine {
  using NarrowFunction = Attention::NarrowFunction;
  using PanelFunction = Attention::PanelFunction;
  NarrowFunction narrow = nullptr;
  PanelFunction panel = nullptr;
  size_t (*narrow_scratch_bytes)(const Problem&) = nullptr;
  size_t (*panel_scratch_bytes)(const Problem&, int64_t rows) = nullptr;
  // Of an item at most. Its queries and sums stay in the L2 cache together with a block of keys and values; beyond so
  // many rows, reading a block of keys is already amortised.
  int64_t item_bytes = 256 * 1024, item_rows = 256;
};

// Multiplies in float, for caches of every element type; float rows are read in place.
Engine FloatEngine(DType cache);
// Multiplies pairs of bfloat16; its functions are null if the machine or the kernel library's level lacks the
// instruction.
Engine BFloat16Engine();
// Multiplies in tile registers when there are many rows; its functions are null if they do not support the type.
Engine TileEngine(DType dtype);

}  // namespace npu::attention
