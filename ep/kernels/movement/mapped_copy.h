// A dense output whose coordinates map axis by axis to those of an input, or to a fill value: Pad and Tile.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

// For one axis, the input coordinate of each output coordinate; -1 is the fill value.
using AxisMap = std::vector<int64_t>;

// Enqueues the copy of x to y, of y.shape. `fill` is a device scalar of the elements' type, or null for
// zero. maps[d] has y.shape[d] entries, each -1 or in [0, x.shape[d]). `op` has static storage.
void LaunchMappedCopy(OpContext& ctx, const char* op, const TensorView& x, const TensorView& y,
                      std::vector<AxisMap> maps, const void* fill);

}  // namespace npu
