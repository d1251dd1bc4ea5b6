// Copies of many equal segments: gathers and scatters of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr int64_t kCopyGrainBytes = 64 * 1024;  // a copy of this size is worth another thread

// A contiguous copy, on all threads if it is long.
inline void CopyBytes(const void* source, void* destination, int64_t bytes) {
  ParallelFor(bytes, kCopyGrainBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(destination) + begin, static_cast<const char*>(source) + begin,
                static_cast<size_t>(end - begin));
  });
}

// Covers `count` segments of `bytes` each with calls f(segment, at, length): bytes [at, at + length) of a segment, so
// that a few long segments are split over the threads, too. Unless `independent`, one thread processes everything in
// order.
template <class F>
void ForEachSegment(int64_t count, int64_t bytes, bool independent, F f) {
  const int64_t total = count * bytes;
  if (total == 0) return;
  ParallelFor(total, independent ? kCopyGrainBytes : total, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t segment = begin / bytes, at = begin % bytes;
      const int64_t length = std::min(end - begin, bytes - at);
      f(segment, at, length);
      begin += length;
    }
  });
}

}  // namespace npu
