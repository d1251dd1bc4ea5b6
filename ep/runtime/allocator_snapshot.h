// State of the caching allocator: its segments and blocks now, and its history.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace npu {

// {0, 0} is the default pool.
struct PoolId {
  uint64_t first = 0, second = 0;
  auto operator<=>(const PoolId&) const = default;
};

// A source location in the host program, as the front end reports it.
struct Frame {
  std::string file;
  int line = 0;
  std::string function;
};
using Frames = std::shared_ptr<const std::vector<Frame>>;  // innermost first; null: not recorded

struct BlockInfo {
  enum class State { kAllocated, kPendingFree, kInactive };
  uint64_t address = 0;
  size_t size = 0, requested = 0;
  State state = State::kInactive;
  Frames frames;
};

struct SegmentInfo {
  uint64_t address = 0;
  size_t total = 0, allocated = 0, active = 0, requested = 0;
  uint64_t stream = 0;  // Stream::id() of the stream it was made for
  PoolId pool;
  bool small = false, expandable = false;
  std::vector<BlockInfo> blocks;
};

struct TraceEntry {
  enum class Action {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kSnapshot,
    kOutOfMemory
  };
  Action action = Action::kAlloc;
  uint64_t address = 0;  // kOutOfMemory: bytes that were free
  size_t size = 0;
  uint64_t stream = 0;
  PoolId pool;
  int64_t time_us = 0;  // since the epoch
  Frames frames;
};

}  // namespace npu
