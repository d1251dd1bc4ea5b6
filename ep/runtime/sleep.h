// A launch that only takes time: torch.npu._sleep, for tests of ordering.
#pragma once

#include <chrono>

#include "ep/runtime/stream.h"

namespace npu {

void LaunchSleep(Stream& stream, std::chrono::nanoseconds time);

}  // namespace npu
