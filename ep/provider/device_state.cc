#include "ep/provider/device_state.h"

#include <algorithm>
#include <utility>

namespace npu::provider {

std::unique_ptr<Stream> DeviceState::CreateStream() {
  auto stream = device_.CreateStream();
  std::lock_guard lock(mutex_);
  streams_.push_back(stream.get());
  return stream;
}

void DeviceState::DestroyStream(std::unique_ptr<Stream> stream) {
  {
    std::lock_guard lock(mutex_);
    std::erase(streams_, stream.get());
  }
  stream.reset();  // drains, so not under the lock
}

void* DeviceState::Allocate(size_t bytes, Stream* stream) {
  if (stream != nullptr) return device_.allocator().Allocate(bytes, *stream);
  void* ptr = device_.allocator().Allocate(bytes, *host_stream_);
  if (ptr != nullptr) {
    std::lock_guard lock(mutex_);
    streamless_.insert(ptr);
  }
  return ptr;
}

void DeviceState::Free(void* ptr) {
  if (ptr == nullptr) return;
  std::lock_guard lock(mutex_);
  if (streamless_.erase(ptr) != 0) {
    for (Stream* stream : streams_) {
      if (!stream->Query()) device_.allocator().RecordStream(ptr, *stream);
    }
  }
  device_.allocator().Free(ptr);
}

void DeviceState::WaitForStreams() {
  std::vector<std::unique_ptr<Event>> passed;
  {
    std::lock_guard lock(mutex_);
    for (Stream* stream : streams_) {
      if (stream->Query()) continue;
      passed.push_back(std::make_unique<Event>(device_.backend()));
      passed.back()->Record(*stream);
    }
  }
  for (const auto& event : passed) event->Synchronize();
}

}  // namespace npu::provider
