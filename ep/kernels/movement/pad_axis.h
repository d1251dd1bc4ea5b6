// One axis of a padded tensor, for Pad and its gradient.
#pragma once

#include <cstdint>
#include <string>

#include "ep/kernels/movement/mapped_copy.h"

namespace npu {

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

// False when there is no such mode.
bool ParsePadMode(const std::string& name, PadMode* mode);
// The padded dimension; throws when it has none, or nothing to repeat.
int64_t PaddedDim(const char* op, PadMode mode, int axis, int64_t before, int64_t after, int64_t dim);
// Which of the axis's `dim` elements stands where, for pads that PaddedDim has seen.
AxisMap PadMap(PadMode mode, int64_t dim, int64_t before, int64_t after);

}  // namespace npu
