// Events of the host backend.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "ep/runtime/backend.h"

namespace npu {

// Number of completed commands of a stream. Shared with its markers, which may outlive the stream. The worker writes it
// after each command while other threads poll it, so it has a cache line of its own.
struct alignas(64) StreamProgress : std::atomic<uint64_t> {
  using std::atomic<uint64_t>::atomic;
};

// A point in a stream's order: the end of its command `number`. Every waiter holds a reference, so the event that
// recorded it may be recorded again or destroyed at any time.
class HostMarker {
 public:
  explicit HostMarker(std::shared_ptr<const StreamProgress> progress) : progress_(std::move(progress)) { Stamp(); }

  void set_number(uint64_t number) { number_ = number; }
  // Reads the stream's own count, so that a stream is never idle before its events have passed.
  bool passed() const { return progress_->load(std::memory_order_acquire) >= number_; }
  // Throws when called by a task of the marker's own stream, which would wait for itself.
  void Wait() const;
  int64_t timestamp_ns() const { return timestamp_ns_; }  // once passed
  const Status& status() const { return status_; }        // once passed: of the stream at that point

  // Sets the stream whose tasks this thread runs from now on, null for none; returns the one until now.
  static const StreamProgress* SetWorkerOf(const StreamProgress* progress);

  // The worker's side: Stamp() before the command counts as done, Wake() after.
  void Stamp(Status status = nullptr);
  void Wake();

 private:
  const std::shared_ptr<const StreamProgress> progress_;
  uint64_t number_ = 0;
  int64_t timestamp_ns_;
  Status status_;
  std::atomic<uint32_t> woken_{0};
};

class HostEvent final : public BackendEvent {
 public:
  std::shared_ptr<HostMarker> marker() const;  // of the last record; null when never recorded
  void set_marker(std::shared_ptr<HostMarker> marker);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<HostMarker> marker_;
};

}  // namespace npu
