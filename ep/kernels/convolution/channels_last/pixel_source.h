// The pixels of images that a convolution reads: channels last, or planes of float32, which are transposed as they are
// copied.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ep/kernels/convert.h"
#include "ep/kernels/transposed_block.h"

namespace npu::channels_last {

// Few planes, as of an image, to pixels of four elements.
inline void TransposeImage(const float* from, int64_t from_pitch, int64_t rows, int64_t columns, BFloat16* to) {
  uint64_t pixels[16];
  for (int64_t begin = 0; begin < columns; begin += 16) {
    const int64_t count = std::min<int64_t>(16, columns - begin);
    for (int64_t r = 0; r < rows; ++r) {
      const float* plane = from + r * from_pitch + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        pixels[i] = (r == 0 ? 0 : pixels[i]) | static_cast<uint64_t>(npu::internal::FloatToBFloat16(plane[i]))
                                                   << (16 * r);
    }
    std::memcpy(to + begin * 4, pixels, static_cast<size_t>(count) * sizeof(uint64_t));
  }
}

// What is read of planes: `lines` cache lines in each of `planes`, which are `pitch` bytes apart.
struct PlaneLines {
  const char* data;
  int64_t pitch, planes, lines;
};

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
      Transpose(planes + image * channels * positions + at, some, to, stored, pitch);
      first += some;
      count -= some;
      to += some * pitch;
    }
  }

  // Of the pixels [first, first + count), of one image at least; none of pixels that are channels last.
  PlaneLines LinesOf(int64_t first, int64_t count) const {
    if (pixels != nullptr || count <= 0) return {};
    const int64_t image = first / positions, at = first % positions;
    const float* from = planes + image * channels * positions + at;
    constexpr int64_t kLine = 64, kElement = sizeof(float);
    const int64_t bytes = std::min(count, positions - at) * kElement;
    return {reinterpret_cast<const char*>(from), positions * kElement, channels, (bytes + kLine - 1) / kLine};
  }

 private:
  void Transpose(const float* from, int64_t count, T* to, int64_t stored, int64_t pitch) const {
    if constexpr (std::is_same_v<T, BFloat16>)
      if (stored == 4 && pitch == 4) return TransposeImage(from, positions, channels, count, to);
    simd::TransposeMatrix(from, positions, channels, count, to, pitch, stored);
  }

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
