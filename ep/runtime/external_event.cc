#include "ep/runtime/external_event.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"

namespace npu {

const char* const ExternalEvent::kWaitOp = "external_event_wait";

struct ExternalEvent::State {
  std::mutex mutex;
  std::condition_variable changed;
  // A count: streams run as they like, so a second record may come before the wait of the first has run.
  uint64_t records = 0;

  void Add() {
    std::lock_guard lock(mutex);
    ++records;
    changed.notify_all();
  }
  void Clear() {
    std::lock_guard lock(mutex);
    records = 0;
  }
  // A stopped device drops what a wait may be waiting for.
  void Take(const Device& device) {
    constexpr std::chrono::milliseconds kLookForStop{20};
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kLookForStop, [this] { return records > 0; }))
      if (device.stopped()) Fail(ErrorCode::kDeviceError, "[", kWaitOp, "] the device was stopped (FORCE STOP)");
    --records;
  }
};

std::shared_ptr<ExternalEvent::State> ExternalEvent::NewState() { return std::make_shared<State>(); }

void ExternalEvent::Record(Stream& stream) {
  stream.Launch("external_event_record", [state = state_] { state->Add(); });
}

void ExternalEvent::Wait(Stream& stream) {
  stream.Launch(kWaitOp, [state = state_, &device = std::as_const(stream.device())] { state->Take(device); });
}

void ExternalEvent::Reset(Stream& stream) {
  stream.Launch("external_event_reset", [state = state_] { state->Clear(); });
}

}  // namespace npu
