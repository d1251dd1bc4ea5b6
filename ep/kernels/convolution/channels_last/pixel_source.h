// The pixels of images that a convolution reads: channels last, or planes of float32, which are transposed as they are
// copied.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ep/kernels/transposed_block.h"

namespace npu::channels_last {

template <class T>
struct PixelSource {
  const T* pixels;  // channels last, or null:
  const float* planes;
  int64_t channels, positions;  // of an image
  int64_t count;                // of all pixels

  // Copies `count` pixels from `first` on, numbered through all images, with `stored` channels, zeros beyond their own;
  // copies are `pitch` elements apart.
  void Copy(int64_t first, int64_t count, T* to, int64_t stored, int64_t pitch) const {
    if (pixels != nullptr) return CopyPixels(pixels + first * channels, count, to, stored, pitch);
    while (count > 0) {
      const int64_t image = first / positions, at = first % positions, some = std::min(count, positions - at);
      simd::TransposeMatrix(planes + image * channels * positions + at, positions, channels, some, to, pitch, stored);
      first += some;
      count -= some;
      to += some * pitch;
    }
  }

 private:
  void CopyPixels(const T* from, int64_t count, T* to, int64_t stored, int64_t pitch) const {
    if (pitch == channels) {
      std::memcpy(to, from, static_cast<size_t>(count * channels) * sizeof(T));
      return;
    }
    for (int64_t p = 0; p < count; ++p, from += channels, to += pitch) {
      std::copy_n(from, channels, to);
      std::fill(to + channels, to + stored, T{});
    }
  }
};

}  // namespace npu::channels_last
