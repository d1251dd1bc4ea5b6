#include "ep/runtime/external_event.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"

namespace npu {

const char* const ExternalEvent::kWaitOp = "external_event_wait";

struct ExternalEvent::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool recorded = false;

  void Set(bool value) {
    std::lock_guard lock(mutex);
    recorded = value;
    changed.notify_all();
  }
  // A stopped device drops what a wait may be waiting for.
  void Take(const Device& device) {
    constexpr std::chrono::milliseconds kLookForStop{20};
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kLookForStop, [this] { return recorded; }))
      if (device.stopped()) Fail(ErrorCode::kDeviceError, "[", kWaitOp, "] the device was stopped (FORCE STOP)");
    recorded = false;
  }
};

std::shared_ptr<ExternalEvent::State> ExternalEvent::NewState() { return std::make_shared<State>(); }

void ExternalEvent::Record(Stream& stream) {
  stream.Launch("external_event_record", [state = state_] { state->Set(true); });
}

void ExternalEvent::Wait(Stream& stream) {
  stream.Launch(kWaitOp, [state = state_, &device = std::as_const(stream.device())] { state->Take(device); });
}

void ExternalEvent::Reset(Stream& stream) {
  stream.Launch("external_event_reset", [state = state_] { state->Set(false); });
}

}  // namespace npu
