// Work that a thread started on streams it does not own and did not wait for, such as a session run without
// synchronisation: everything that the thread enqueues or waits for next is ordered behind it.
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
  // Whether this thread has such work. One thread-local load.
  static bool Any() { return any_; }
  // `done`, recorded behind the work, belongs to a stream of `device`.
  static void Add(const Device& device, std::shared_ptr<const Event> done);
  // Orders `stream` behind this thread's work on its device.
  static void Join(Stream& stream);
  // The end events of this thread's work on the device, except work that has succeeded.
  static std::vector<std::shared_ptr<const Event>> Of(const Device& device);
  // Waits for this thread's work on the device and forgets it, collecting its failures.
  static void Wait(const Device& device, Failures& failures);
  // The same for the work of every thread, without forgetting that of live threads.
  static void WaitForAll(const Device& device, Failures& failures);

 private:
  static thread_local bool any_;
};

}  // namespace npu
