// Copies of a few bytes of host memory, which the caller may free immediately.
#pragma once

#include <cstddef>

#include "ep/runtime/stream.h"

namespace npu {

// The launch holds the bytes, so that the caller does not wait.
void LaunchStagedCopy(Stream& stream, void* to, const void* from, size_t bytes);

}  // namespace npu
