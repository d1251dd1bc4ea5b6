#include "ep/runtime/allocator_history.h"

#include <chrono>
#include <utility>

namespace npu {

void AllocatorHistory::Record(size_t max_entries, FramesNow frames_now) {
  max_entries_ = max_entries;
  ring_.clear();
  next_ = 0;
  frames_now_.store(frames_now);
  recording_.store(max_entries > 0);
}

Frames AllocatorHistory::FramesNowOrNull() const {
  if (!recording()) return nullptr;
  const FramesNow frames_now = frames_now_.load();
  return frames_now == nullptr ? nullptr : frames_now();
}

void AllocatorHistory::Add(TraceEntry entry) {
  if (!recording()) return;
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::system_clock;
  entry.time_us = duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
  if (ring_.size() < max_entries_) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[next_] = std::move(entry);
    next_ = (next_ + 1) % max_entries_;
  }
}

std::vector<TraceEntry> AllocatorHistory::Entries() const {
  std::vector<TraceEntry> out(ring_.begin() + static_cast<ptrdiff_t>(next_), ring_.end());
  out.insert(out.end(), ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(next_));
  return out;
}

}  // namespace npu
