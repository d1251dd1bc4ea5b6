// Copies of many equal pieces: gathers and scatters of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr int64_t kCopyGrainBytes = 64 * 1024;  // copies that are worth another thread

// A plain copy, on all threads when it is long.
inline void CopyBytes(const void* source, void* destination, int64_t bytes) {
  ParallelFor(bytes, kCopyGrainBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(destination) + begin, static_cast<const char*>(source) + begin,
                static_cast<size_t>(end - begin));
  });
}

// Covers `count` segments of `bytes` each with calls f(segment, at, length): bytes [at, at + length) of a segment, so
// that few long segments are split over the threads as well as many short ones. One thread takes everything in order
// unless `independent`.
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
