#include "ep/provider/device_state.h"

#include <utility>

#include "ep/runtime/current.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/lent_memory.h"
#include "ep/runtime/worker_thread.h"

namespace npu::provider {
namespace {

thread_local Stream* captured_stream = nullptr;

}  // namespace

Stream& DeviceState::TakeStream() {
  {
    std::lock_guard lock(mutex_);
    if (!idle_streams_.empty()) {
      Stream* stream = idle_streams_.back();
      idle_streams_.pop_back();
      return *stream;
    }
  }
  auto stream = device_.CreateStream(0, StreamOwner::kOne);
  std::lock_guard lock(mutex_);
  idle_streams_.reserve(own_streams_.size() + 1);
  own_streams_.push_back(std::move(stream));
  return *own_streams_.back();
}

void DeviceState::GiveStream(Stream& stream) {
  std::lock_guard lock(mutex_);
  idle_streams_.push_back(&stream);
}

void DeviceState::ShareFreeBlocks() {
  std::vector<Stream*> streams;
  {
    std::lock_guard lock(mutex_);
    streams = idle_streams_;
  }
  for (Stream* stream : streams) device_.allocator().ShareFreeBlocks(*stream);
}

void* DeviceState::Allocate(size_t bytes, Stream* stream) {
  if (stream == nullptr) {
    if (void* lent = LentMemory::Take(device_.index(), bytes)) return lent;
  }
  // Replays use this memory again, so it belongs to the graph's pool.
  if (CapturesHere() && (stream == nullptr || stream == captured_stream)) {
    void* ptr = device_.allocator().Allocate(bytes, *captured_stream);
    std::lock_guard lock(mutex_);
    if (ptr != nullptr) captured_[ptr] = {captured_stream, nullptr};
    return ptr;
  }
  if (stream != nullptr) return device_.allocator().Allocate(bytes, *stream);
  const OwnStream idle(*this);  // nothing runs on it, so that its memory is free for every stream
  void* ptr = device_.allocator().Allocate(bytes, *idle);
  if (ptr != nullptr) {
    std::lock_guard lock(mutex_);
    streamless_[ptr] = ++allocations_;
  }
  return ptr;
}

void DeviceState::Free(void* ptr) {
  if (ptr == nullptr || InForkedChild()) return;  // a lock may be held by a thread that exists only in the parent
  if (const auto owner = LentMemory::Return(ptr)) {
    device_.RecordBusyStreams(ptr);
    return;  // releases the owner
  }
  std::unique_lock lock(mutex_);
  const bool streamless = streamless_.erase(ptr) != 0;
  if (const auto captured = captured_.find(ptr); captured != captured_.end()) {
    const std::shared_ptr<const void> held = std::move(captured->second.held);
    captured_.erase(captured);
    lock.unlock();
    if (held == nullptr) return device_.allocator().Free(ptr);  // a replay uses it in the stream's order
    return device_.RecordBusyStreams(ptr);                      // the graph may still hold it
  }
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

void DeviceState::BeginCapture(Graph& graph, Stream& stream, PoolId pool) {
  graph.CaptureBegin(stream, pool, CaptureMode::kRelaxed);
  captured_stream = &stream;
}

void DeviceState::EndCapture(Graph& graph, Stream& stream) {
  captured_stream = nullptr;
  {
    std::lock_guard lock(mutex_);
    for (auto& [ptr, captured] : captured_) {
      if (captured.stream != &stream || captured.held != nullptr) continue;
      captured.held = {ptr, [&device = device_](const void* p) { device.allocator().Free(const_cast<void*>(p)); }};
      Recording::Keep(stream, captured.held);
    }
  }
  graph.CaptureEnd(stream);
}

void DeviceState::AbandonCapture(std::unique_ptr<Graph> graph) {
  captured_stream = nullptr;
  graph.reset();
}

bool DeviceState::CapturesHere() const { return captured_stream != nullptr && &captured_stream->device() == &device_; }

void DeviceState::WaitForCaller() { CurrentStream(device_.index()).Synchronize(); }

}  // namespace npu::provider
