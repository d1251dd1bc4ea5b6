#include "ep/runtime/sleep.h"

#include <thread>

namespace npu {

void LaunchSleep(Stream& stream, std::chrono::nanoseconds time) {
  stream.LaunchHost("sleep", [time] { std::this_thread::sleep_for(time); });
}

}  // namespace npu
