// What outputs of a convolution read, as rows of a matrix: of an image of bytes with channels last, the channels of one
// group at every tap of the kernel. A convolution that reads one position needs no copy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/microkernel.h"

namespace npu::convolution {

struct ByteRows {
  const uint8_t* data;
  int64_t pitch;  // in bytes
};

// Bytes in blocks of one size, the last of which overlaps: a call of memcpy takes longer than most rows.
inline void CopyShort(const uint8_t* from, int64_t count, uint8_t* to) {
  const auto blocks = [&](auto size) {
    for (int64_t i = 0; i < count - size; i += size) std::memcpy(to + i, from + i, size);
    std::memcpy(to + count - size, from + count - size, size);
  };
  if (count >= 64) return blocks(std::integral_constant<int64_t, 64>{});
  if (count >= 16) return blocks(std::integral_constant<int64_t, 16>{});
  if (count >= 4) return blocks(std::integral_constant<int64_t, 4>{});
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

class RowReader {
 public:
  // Micro-kernels read so many bytes behind an image: rows and elements of a row that their tiles have and it has not.
  static int64_t Slack(int64_t channels) { return gemm::kMaxSliverRows * channels + gemm::kChunkBytes; }

  // `channels`: of the image, in `groups`.
  RowReader(const Taps& taps, int64_t channels, int64_t groups)
      : taps_(taps), channels_(channels), each_(channels / groups) {
    const Axis& last = taps.axes().back();
    const bool merges = groups == 1 && last.dilation == 1;  // taps of one row are neighbours in the image, too
    span_ = merges ? last.kernel : 1;
    pitch_ = (depth() + gemm::kChunkBytes - 1) / gemm::kChunkBytes * gemm::kChunkBytes;
    // Rows so far apart would be in a few sets of the first-level cache.
    constexpr int64_t kFar = 1024;
    if (pitch_ % kFar == 0) pitch_ += gemm::kChunkBytes;
  }

  int64_t depth() const { return taps_.count() * each_; }
  int64_t pitch() const { return taps_.pointwise() ? channels_ : pitch_; }

  // Of the outputs [begin, end) of an image, in the image or copied to `scratch`.
  ByteRows Read(const uint8_t* image, int64_t group, int64_t begin, int64_t end, uint8_t padding,
                gemm::AlignedBuffer& scratch) const {
    const uint8_t* from = image + group * each_;
    if (taps_.pointwise()) return {from + begin * channels_, channels_};
    auto* rows = static_cast<uint8_t*>(scratch.Reserve((end - begin + gemm::kMaxSliverRows) * pitch_));
    const int64_t width = taps_.width(), kernel = taps_.axes().back().kernel;
    for (int64_t at = begin; at < end;) {
      const int64_t line = at / width, stop = std::min(end, (line + 1) * width);
      for (int64_t tap = 0; tap < taps_.count(); tap += span_) {
        const int64_t source = taps_.LineOf(line, tap / kernel);
        uint8_t* to = rows + (at - begin) * pitch_ + tap * each_;
        ReadSpan(from, source, tap % kernel, at - line * width, stop - line * width, padding, to);
      }
      at = stop;
    }
    return {rows, pitch_};
  }

 private:
  // Of the outputs [begin, end) of a line what `span_` taps read of line `source` of the image, which may be padding.
  void ReadSpan(const uint8_t* image, int64_t source, int64_t tap, int64_t begin, int64_t end, uint8_t padding,
                uint8_t* to) const {
    const Axis& axis = taps_.axes().back();
    const uint8_t* line = image + std::max<int64_t>(0, source) * axis.in * channels_;
    for (int64_t x = begin; x < end; ++x, to += pitch_) {
      const int64_t first = x * axis.stride - axis.before + tap * axis.dilation;
      const int64_t low = source < 0 ? span_ : std::clamp<int64_t>(-first, 0, span_);
      const int64_t high = std::clamp(axis.in - first, low, span_);
      if (low > 0) std::memset(to, padding, static_cast<size_t>(low * each_));
      if (low < high) CopyShort(line + (first + low) * channels_, (high - low) * each_, to + low * each_);
      if (high < span_) std::memset(to + high * each_, padding, static_cast<size_t>((span_ - high) * each_));
    }
  }

  const Taps& taps_;
  int64_t channels_, each_;  // of the image, of a group
  int64_t span_;             // taps that are copied together
  int64_t pitch_;            // of copies
};

}  // namespace npu::convolution
