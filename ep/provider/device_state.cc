#include "ep/provider/device_state.h"

#include <algorithm>
#include <utility>

#include "ep/runtime/current.h"
#include "ep/runtime/lent_memory.h"

namespace npu::provider {
namespace {

thread_local Stream* captured_stream = nullptr;

}  // namespace

std::unique_ptr<Stream> DeviceState::CreateStream() {
  auto stream = device_.CreateStream();
  if (const auto caller = RecordCaller()) stream->Wait(*caller);
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
  if (void* lent = LentMemory::Take(device_.index(), bytes)) return lent;
  // Replays use it again, so it belongs to the graph's pool.
  if (CapturesHere()) return device_.allocator().Allocate(bytes, *captured_stream);
  void* ptr = device_.allocator().Allocate(bytes, *host_stream_);
  if (ptr != nullptr) {
    std::lock_guard lock(mutex_);
    streamless_[ptr] = ++allocations_;
  }
  return ptr;
}

void DeviceState::Free(void* ptr) {
  if (ptr == nullptr) return;
  if (const auto owner = LentMemory::Return(ptr)) {
    device_.RecordBusyStreams(ptr);
    return;  // releases the owner
  }
  std::unique_lock lock(mutex_);
  const bool streamless = streamless_.erase(ptr) != 0;
  lock.unlock();
  if (streamless) device_.RecordBusyStreams(ptr);
  device_.allocator().Free(ptr);
}

uint64_t DeviceState::allocations() {
  std::lock_guard lock(mutex_);
  return allocations_;
}

bool DeviceState::AllocatedSince(const void* ptr, uint64_t allocations) {
  std::lock_guard lock(mutex_);
  const auto found = streamless_.find(ptr);
  return found != streamless_.end() && found->second > allocations;
}

std::unique_ptr<Event> DeviceState::RecordCaller() const {
  Stream& caller = CurrentStream(device_.index());
  if (Graph::IsCapturing(caller) || caller.Query()) return nullptr;
  auto event = std::make_unique<Event>(device_.backend());
  event->Record(caller);
  return event;
}

void DeviceState::FollowCaller() {
  const auto caller = RecordCaller();
  if (caller == nullptr) return;
  std::lock_guard lock(mutex_);
  for (Stream* stream : streams_) {
    if (!Graph::IsCapturing(*stream)) stream->Wait(*caller);
  }
}

// Under the lock, so that nobody who goes through the streams meets one whose capture begins or ends meanwhile.
void DeviceState::BeginCapture(Graph& graph, Stream& stream) {
  std::lock_guard lock(mutex_);
  graph.CaptureBegin(stream, {}, CaptureMode::kRelaxed);
  captured_stream = &stream;
}

void DeviceState::EndCapture(Graph& graph, Stream& stream) {
  std::lock_guard lock(mutex_);
  captured_stream = nullptr;
  graph.CaptureEnd(stream);
}

void DeviceState::AbandonCapture(std::unique_ptr<Graph> graph) {
  std::lock_guard lock(mutex_);
  captured_stream = nullptr;
  graph.reset();
}

bool DeviceState::CapturesHere() const { return captured_stream != nullptr && &captured_stream->device() == &device_; }

void DeviceState::WaitForStreams() {
  std::vector<std::unique_ptr<Event>> passed;
  if (auto caller = RecordCaller()) passed.push_back(std::move(caller));
  {
    std::lock_guard lock(mutex_);
    for (Stream* stream : streams_) {
      if (Graph::IsCapturing(*stream) || stream->Query()) continue;  // what is captured does not run
      passed.push_back(std::make_unique<Event>(device_.backend()));
      passed.back()->Record(*stream);
    }
  }
  for (const auto& event : passed) event->Synchronize();
}

}  // namespace npu::provider
