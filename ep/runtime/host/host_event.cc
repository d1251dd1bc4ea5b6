#include "ep/runtime/host/host_event.h"

#include <chrono>
#include <utility>

#include "ep/runtime/spin.h"

namespace npu {

void HostMarker::Stamp() {
  timestamp_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void HostMarker::Wake() {
  woken_.store(1);
  woken_.notify_all();
}

void HostMarker::Wait() const {
  if (SpinUntil([this] { return passed(); }, std::chrono::microseconds(20))) return;
  while (woken_.load() == 0) woken_.wait(0);
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
