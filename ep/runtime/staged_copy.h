// Copies of few bytes of host memory, which the caller may free at once.
#pragma once

#include <cstddef>

#include "ep/runtime/stream.h"

namespace npu {

// The bytes go along with the launch, so that nobody waits.
void LaunchStagedCopy(Stream& stream, void* to, const void* from, size_t bytes);

}  // namespace npu
