// A launch that only takes time: torch.npu._sleep, for tests of what is ordered behind it.
#pragma once

#include <chrono>

#include "ep/runtime/stream.h"

namespace npu {

void LaunchSleep(Stream& stream, std::chrono::nanoseconds time);

}  // namespace npu
