#include "ep/runtime/host/host_event.h"

#include <chrono>
#include <utility>

#include "ep/runtime/error.h"
#include "ep/runtime/spin.h"
#include "ep/runtime/thread_pool.h"

namespace npu {
namespace {

// How long a waiting thread spins before it sleeps: longer where its core would idle meanwhile, since waking up takes
// tens of microseconds on a virtual machine.
constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::microseconds kHelperSpin{100};

thread_local const StreamProgress* worker_of = nullptr;

}  // namespace

const StreamProgress* HostMarker::SetWorkerOf(const StreamProgress* progress) {
  return std::exchange(worker_of, progress);
}

void HostMarker::Stamp(Status status) {
  status_ = std::move(status);
  timestamp_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void HostMarker::Wake() {
  woken_.store(1);
  woken_.notify_all();
}

void HostMarker::Wait() const {
  if (passed()) return;
  if (progress_.get() == worker_of)
    Fail(ErrorCode::kInvalidArgument, "a task of a stream cannot synchronize that stream: it would wait for itself");
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
