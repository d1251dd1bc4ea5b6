#include "ep/runtime/host/host_event.h"

#include <chrono>
#include <utility>

#include "ep/runtime/spin.h"
#include "ep/runtime/thread_pool.h"

namespace npu {
namespace {

// How long a waiting thread watches before it sleeps: longer where its core would idle meanwhile, since to be woken
// takes tens of microseconds on a virtual machine.
constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::microseconds kHelperSpin{100};

}  // namespace

void HostMarker::Stamp() {
  timestamp_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void HostMarker::Wake() {
  woken_.store(1);
  woken_.notify_all();
}

void HostMarker::Wait() const {
  if (passed()) return;
  {
    PoolHelper helper;
    const auto limit = helper.enrolled() ? kHelperSpin : kSpin;
    while (SpinUntil([&] { return passed() || helper.Help(); }, limit)) {
      if (passed()) return;
    }
  }
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
