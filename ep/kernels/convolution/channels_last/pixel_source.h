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
      Transpose(planes + image * channels * positions + at, some, to, stored, pitch);
      first += some;
      count -= some;
      to += some * pitch;
    }
  }

 private:
  static constexpr int64_t kLanes = simd::kLanes;
  static constexpr int64_t kAhead = 2 * kLanes;  // planes, whose rows are too far apart for the processor to foresee

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

  void Transpose(const float* from, int64_t count, T* to, int64_t stored, int64_t pitch) const {
    for (int64_t c = 0; c < stored; c += kLanes, from += kLanes * positions) {
      const int64_t rows = std::clamp<int64_t>(channels - c, 0, kLanes), columns = std::min(kLanes, stored - c);
      for (int64_t p = 0; p < count; p += kLanes)
        TransposeBlock(from + p, rows, std::min(kLanes, count - p), to + p * pitch + c, columns, pitch);
    }
  }

  // `rows` planes at `some` positions, to as many pixels of `columns` channels.
  void TransposeBlock(const float* from, int64_t rows, int64_t some, T* to, int64_t columns, int64_t pitch) const {
    simd::Vec block[kLanes];
    if (rows == kLanes && some == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = simd::Load(from + i * positions);
        __builtin_prefetch(from + (i + kAhead) * positions);
      }
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = i < rows ? simd::LoadFirst(from + i * positions, some) : simd::Vec{};
    }
    simd::Transpose(block);
    if (some == kLanes && columns == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) simd::StoreRounded(simd::Rounded<T>(block[i]), to + i * pitch);
    } else {
      for (int64_t i = 0; i < some; ++i) simd::StoreFirst(block[i], to + i * pitch, columns);
    }
  }
};

}  // namespace npu::channels_last
