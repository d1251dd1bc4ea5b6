// The last events of an allocator, for memory snapshots.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "ep/runtime/allocator_snapshot.h"

namespace npu {

// Guarded by the allocator's lock, except for recording() and FramesNowOrNull().
class AllocatorHistory {
 public:
  using FramesNow = Frames (*)();

  // Keeps the last `max_entries` events; 0 stops recording and clears them. `frames_now` may be null; it is called
  // without the allocator's lock, on the thread that allocates.
  void Record(size_t max_entries, FramesNow frames_now);
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  Frames FramesNowOrNull() const;
  void Add(TraceEntry entry);               // sets its time
  std::vector<TraceEntry> Entries() const;  // oldest first

 private:
  std::atomic<bool> recording_{false};
  std::atomic<FramesNow> frames_now_{nullptr};
  size_t max_entries_ = 0, next_ = 0;
  std::vector<TraceEntry> ring_;
};

}  // namespace npu
