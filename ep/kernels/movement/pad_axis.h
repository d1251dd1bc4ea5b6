// One axis of a padded tensor, for Pad and its gradient.
#pragma once

#include <cstdint>
#include <string>

#include "ep/kernels/movement/mapped_copy.h"

namespace npu {

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

// False if there is no such mode.
bool ParsePadMode(const std::string& name, PadMode* mode);
// The padded dimension; throws if it is invalid, or there are no elements to repeat.
int64_t PaddedDim(const char* op, PadMode mode, int axis, int64_t before, int64_t after, int64_t dim);
// The index in [0, dim) of the source element of each output position, for pads that PaddedDim has checked.
AxisMap PadMap(PadMode mode, int64_t dim, int64_t before, int64_t after);

}  // namespace npu
