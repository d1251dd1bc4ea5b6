#include "ep/runtime/host/host_event.h"

#include <chrono>
#include <utility>

#include "ep/runtime/spin.h"

namespace npu {

void HostMarker::Fire() {
  timestamp_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  fired_.store(1);
  fired_.notify_all();
}

void HostMarker::Wait() const {
  const auto fired = [this] { return this->fired(); };
  if (SpinUntil(fired, std::chrono::microseconds(20))) return;
  while (!this->fired()) fired_.wait(0);
}

std::shared_ptr<HostMarker> HostEvent::marker() const {
  std::lock_guard lock(mutex_);
  return marker_;
}

void HostEvent::set_marker(std::shared_ptr<HostMarker> marker) {
  std::lock_guard lock(mutex_);
  marker_ = std::move(marker);
}

}  // namespace npu
