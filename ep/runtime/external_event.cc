#include "ep/runtime/external_event.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"

namespace npu {

const char* const ExternalEvent::kWaitOp = "external_event_wait";

struct ExternalEvent::State {
  std::mutex mutex;
  std::condition_variable changed;
  // One status per record: streams are concurrent, so a second record may run before the wait for the first.
  std::deque<Status> records;

  void Add(const Status& status) {
    std::lock_guard lock(mutex);
    records.push_back(status);
    changed.notify_all();
  }
  void Clear() {
    std::lock_guard lock(mutex);
    records.clear();
  }
  // A record behind a failure fails the waiting stream, too. A failed stream takes a record without waiting for it:
  // nothing behind the wait will run. A stopped device may have dropped the record that a wait needs.
  void Take(const Device& device, const Status& status) {
    constexpr std::chrono::milliseconds kLookForStop{20};
    std::unique_lock lock(mutex);
    while (status == nullptr && !changed.wait_for(lock, kLookForStop, [this] { return !records.empty(); }))
      if (device.stopped()) Fail(ErrorCode::kDeviceError, "[", kWaitOp, "] the device was stopped (FORCE STOP)");
    if (records.empty()) return;
    const Status recorded = std::move(records.front());
    records.pop_front();
    ThrowIfFailed(recorded);
  }
};

std::shared_ptr<ExternalEvent::State> ExternalEvent::NewState() { return std::make_shared<State>(); }

void ExternalEvent::Record(Stream& stream) {
  stream.LaunchAlways("external_event_record", [state = state_](const Status& status) { state->Add(status); });
}

void ExternalEvent::Wait(Stream& stream) {
  if (!Graph::IsCapturing(stream)) stream.BeforeWork();  // a failure that it carries is reported to this thread
  stream.LaunchAlways(kWaitOp, [state = state_, &device = std::as_const(stream.device())](const Status& status) {
    state->Take(device, status);
  });
}

void ExternalEvent::Reset(Stream& stream) {
  stream.LaunchAlways("external_event_reset", [state = state_](const Status&) { state->Clear(); });
}

}  // namespace npu
