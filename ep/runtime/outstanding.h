// Work that a thread started on streams of somebody else and did not wait for, as an inference session's run that is
// not synchronised: whatever the thread enqueues or waits for next comes behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ep/runtime/status.h"

namespace npu {

class Device;
class Event;
class Stream;

class Outstanding {
 public:
  // Whether this thread has any. One thread-local load.
  static bool Any() { return any_; }
  // `done`, recorded behind the work, is on a stream of `device`.
  static void Add(const Device& device, std::shared_ptr<const Event> done);
  // `stream` goes on behind this thread's work on its device.
  static void Join(Stream& stream);
  // The ends of this thread's work on the device, but for what is over and well.
  static std::vector<std::shared_ptr<const Event>> Of(const Device& device);
  // Waits for this thread's work on the device; it has been seen then, with its failures.
  static void Wait(const Device& device, Failures& failures);
  // The same for every thread's work, which its thread still has to see.
  static void WaitForAll(const Device& device, Failures& failures);

 private:
  static thread_local bool any_;
};

}  // namespace npu
