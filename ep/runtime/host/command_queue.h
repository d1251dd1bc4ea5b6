// The queue between the threads that launch and a stream's worker.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "ep/runtime/host/host_event.h"
#include "ep/runtime/task.h"
#include "ep/runtime/wake_placement.h"

namespace npu {

struct Command {
  Task task{};
  const char* op = "";
  bool survives_errors = false;          // runs even behind a failed task, to keep the order
  size_t held_bytes = 0;                 // of host memory, until the task is done
  std::shared_ptr<HostMarker> marker{};  // instead of a task: it gets the command's number
};

// Any number of producers, one consumer. Slots are allocated in chunks: the queue has no bound of its own, yet in the
// steady state two chunks alternate and nothing is allocated.
class CommandQueue {
 public:
  CommandQueue();
  ~CommandQueue();
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  void Push(Command command);
  // Consumer: the oldest command, or null when Close() was called and all are done. Sleeps when empty.
  Command* Front();
  // Consumer: completes Front(); its closure is destroyed before the command counts as completed.
  void Pop();
  // Makes Front() return null once the queue has drained.
  void Close();

  // Commands not yet completed.
  uint64_t pending() const {
    const uint64_t completed = completed_->load(std::memory_order_acquire);  // loaded first: it must not exceed pushed_
    return pushed_.load(std::memory_order_acquire) - completed;
  }
  size_t pending_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  bool never_used() const { return pushed_.load(std::memory_order_acquire) == 0; }
  const std::shared_ptr<StreamProgress>& progress() const { return completed_; }

 private:
  static constexpr uint64_t kChunkSlots = 32;
  struct Chunk {
    std::array<Command, kChunkSlots> slots;
    Chunk* next = nullptr;
  };
  Chunk* NewChunk();
  void WakeConsumer();

  // Producers' side.
  alignas(64) std::mutex mutex_;
  Chunk* tail_;
  // Shared.
  alignas(64) std::atomic<uint64_t> pushed_{0};
  std::atomic<size_t> held_bytes_{0};
  std::atomic<uint32_t> sleeping_{0};
  std::atomic<bool> closed_{false};
  std::atomic<Chunk*> spare_{nullptr};
  // The consumer's side.
  alignas(64) const std::shared_ptr<StreamProgress> completed_;
  Chunk* head_;
  WakePlacement placement_;
};

}  // namespace npu
