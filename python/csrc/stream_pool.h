// Streams for calls that wait for their own result. Each call has its own, so that a thread neither waits for another
// thread's kernels nor receives its error.
#pragma once

#include <memory>

#include "ep/runtime/device.h"

namespace npu::python {

class StreamLease {
 public:
  explicit StreamLease(Device& device);
  ~StreamLease();  // the stream must be idle
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;
  Stream& operator*() const { return *stream_; }
  Stream* operator->() const { return stream_.get(); }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace npu::python
