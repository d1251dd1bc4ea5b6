#include "ep/runtime/host/command_queue.h"

#include <chrono>
#include <utility>

#include "ep/runtime/spin.h"

namespace npu {
namespace {

// Long enough to bridge the gap between two launches of an eager loop, short enough to release the core between two
// tokens.
constexpr std::chrono::microseconds kConsumerSpin{20};

}  // namespace

CommandQueue::CommandQueue() : tail_(new Chunk), completed_(std::make_shared<StreamProgress>(0)), head_(tail_) {}

CommandQueue::~CommandQueue() {
  delete spare_.load();
  while (head_ != nullptr) delete std::exchange(head_, head_->next);
}

CommandQueue::Chunk* CommandQueue::NewChunk() {
  Chunk* chunk = spare_.exchange(nullptr, std::memory_order_acquire);
  return chunk != nullptr ? chunk : new Chunk;
}

void CommandQueue::Push(Command command) {
  {
    std::lock_guard lock(mutex_);
    const uint64_t index = pushed_.load(std::memory_order_relaxed);
    if (index % kChunkSlots == 0 && index != 0) {
      Chunk* chunk = NewChunk();
      tail_->next = chunk;  // published to the consumer by pushed_ below
      tail_ = chunk;
    }
    if (command.marker != nullptr) command.marker->set_number(index + 1);
    if (command.held_bytes != 0) held_bytes_.fetch_add(command.held_bytes, std::memory_order_relaxed);
    tail_->slots[index % kChunkSlots] = std::move(command);
    pushed_.store(index + 1);  // sequentially consistent, like the load in WakeConsumer: see Front()
  }
  WakeConsumer();
}

void CommandQueue::WakeConsumer() {
  if (sleeping_.load() == 0 || sleeping_.exchange(0) == 0) return;
  placement_.BeforeWake();
  sleeping_.notify_one();
}

Command* CommandQueue::Front() {
  const uint64_t done = completed_->load(std::memory_order_relaxed);
  const auto has_work = [&] { return pushed_.load(std::memory_order_acquire) != done; };
  while (!SpinUntil(has_work, kConsumerSpin)) {
    // Either the producer sees sleeping_ set, or this thread sees its push: both sides store first and
    // load second, all sequentially consistent.
    placement_.BeforeSleep();
    sleeping_.store(1);
    if (pushed_.load() != done) {
      sleeping_.store(0);
    } else if (closed_.load()) {
      return nullptr;
    } else {
      sleeping_.wait(1);
    }
    placement_.AfterWake();
  }
  if (done % kChunkSlots == 0 && done != 0) {
    Chunk* used = std::exchange(head_, head_->next);
    used->next = nullptr;
    delete spare_.exchange(used, std::memory_order_acq_rel);
  }
  return &head_->slots[done % kChunkSlots];
}

void CommandQueue::Pop() {
  const uint64_t done = completed_->load(std::memory_order_relaxed);
  Command& command = head_->slots[done % kChunkSlots];
  command.task.Reset();
  if (command.held_bytes != 0) held_bytes_.fetch_sub(command.held_bytes, std::memory_order_relaxed);
  completed_->store(done + 1, std::memory_order_release);
}

void CommandQueue::Close() {
  closed_.store(true);
  WakeConsumer();
}

}  // namespace npu
