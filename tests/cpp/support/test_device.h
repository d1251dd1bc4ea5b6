// A device for one test, with its own limit, streams and statistics.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/host/host_backend.h"

namespace npu::test {

struct TestDevice {
  static constexpr size_t kDefaultLimit = size_t{1} << 30;

  explicit TestDevice(size_t limit = kDefaultLimit)
      : backend(MakeHostBackend({1, limit, "test device"})), device(*backend, 0, limit) {}

  Stream& stream() { return device.default_stream(); }
  CachingAllocator& allocator() { return device.allocator(); }

  std::unique_ptr<Backend> backend;
  Device device;
};

// Blocks a task until the test opens the gate.
class Gate {
 public:
  void Open() {
    open_ = true;
    open_.notify_all();
  }
  void Wait() { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

// Opens the gate at the end of the scope, so that a failed REQUIRE leaves no task blocked.
struct OpenAtExit {
  Gate& gate;
  ~OpenAtExit() { gate.Open(); }
};

// A device with a stream in addition to its default one.
struct DeviceWithSideStream : TestDevice {
  std::unique_ptr<Stream> side = device.CreateStream();
};

inline Task Append(std::vector<int>& log, int value) {
  return Task([&log, value] { log.push_back(value); });
}

}  // namespace npu::test
