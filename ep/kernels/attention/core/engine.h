// The instruction choices for computing Items of one element type.
#pragma once

#include "ep/kernels/attention/core/attention.h"

namespace npu::attention {

struct Engine {
  using ItemFunction = void (*)(const Problem&, const Item&, float* partials, void* scratch);
  ItemFunction narrow = nullptr, panel = nullptr;
  size_t (*narrow_scratch_bytes)(const Problem&) = nullptr;
  size_t (*panel_scratch_bytes)(const Problem&, int64_t rows) = nullptr;
};

// Products in float, for caches of every element type; floats are read where they lie.
Engine FloatEngine(DType cache);
// Products of bfloat16 pairs; without functions where this machine or the kernel library's level lacks the instruction.
Engine BFloat16Engine();
// Products in tile registers where there are many rows; without functions where they cannot take the type.
Engine TileEngine(DType dtype);

}  // namespace npu::attention
