// Dense copies inside launched kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr int64_t kCopyGrain = 256 * 1024;  // bytes worth another thread

// Copies rows of `width` bytes from one pitch to another; the split between threads may cut a row. The regions do not
// overlap.
inline void CopyRows(char* dst, int64_t dst_pitch, const char* src, int64_t src_pitch, int64_t width, int64_t rows) {
  if (width == 0 || rows == 0) return;
  ParallelFor(rows * width, kCopyGrain, [=](int64_t begin, int64_t end) {
    int64_t row = begin / width;
    int64_t column = begin % width;
    while (begin < end) {
      const int64_t count = std::min(width - column, end - begin);
      std::memcpy(dst + row * dst_pitch + column, src + row * src_pitch + column, static_cast<size_t>(count));
      begin += count;
      column = 0;
      ++row;
    }
  });
}

// Enqueues the copy of a whole tensor, unless source and destination are the same.
inline void LaunchCopy(OpContext& ctx, const char* op, const TensorView& from, const TensorView& to) {
  const auto bytes = static_cast<int64_t>(from.bytes());
  if (bytes == 0 || from.data == to.data) return;
  ctx.Launch(op, [dst = to.as<char>(), src = from.as<const char>(), bytes] { CopyRows(dst, 0, src, 0, bytes, 1); });
}

}  // namespace npu
