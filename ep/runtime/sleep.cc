#include "ep/runtime/sleep.h"

#include <thread>

namespace npu {

void LaunchSleep(Stream& stream, std::chrono::nanoseconds time) {
  stream.Launch("sleep", [time] { std::this_thread::sleep_for(time); });
}

}  // namespace npu
