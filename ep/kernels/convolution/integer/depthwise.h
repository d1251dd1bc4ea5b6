// A depthwise convolution of integers: every channel has a filter of its own, so that channels are the lanes of vectors
// and nothing is multiplied as a matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/integer/finish.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/quantization/bytes.h"

namespace npu::convolution {

class IntegerDepthwise {
 public:
  // `x`: bytes of `type`, channels last. `zeros`: of the weight [channels, 1, taps], one for each channel.
  IntegerDepthwise(const Taps& taps, int64_t images, DType type, const uint8_t* x, int32_t x_zero,
                   const TensorView& weight, const std::vector<int32_t>& zeros, const int32_t* bias,
                   const IntegerFinish& finish)
      : taps_(taps), images_(images), type_(type), x_(x), x_zero_(x_zero), finish_(finish) {
    const int64_t channels = finish.channels;
    filters_.resize(static_cast<size_t>(channels * taps.count()));
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t tap = 0; tap < taps.count(); ++tap)
        filters_[static_cast<size_t>(tap * channels + c)] =
            ByteAt(weight, c * taps.count() + tap) - zeros[static_cast<size_t>(c)];
    added_.resize(static_cast<size_t>(channels), 0);
    for (int64_t c = 0; bias != nullptr && c < channels; ++c)
      added_[static_cast<size_t>(c)] = static_cast<uint32_t>(bias[c]);
  }

  void Run() const {
    const int64_t blocks = (finish_.outputs + kPositions - 1) / kPositions;
    const int64_t parts = (finish_.channels + kChannels - 1) / kChannels;
    ParallelFor(images_ * blocks * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t part = unit % parts, block = unit / parts % blocks, image = unit / parts / blocks;
        if (type_ == DType::kInt8) {
          RunBlock(reinterpret_cast<const int8_t*>(x_), image, block * kPositions, part * kChannels);
        } else {
          RunBlock(x_, image, block * kPositions, part * kChannels);
        }
      }
    });
  }

 private:
  static constexpr int64_t kPositions = 64, kChannels = 64;  // of sums that stay in the first-level cache

  template <class T>
  void RunBlock(const T* x, int64_t image, int64_t begin, int64_t channel) const {
    static thread_local struct {
      alignas(64) int32_t sums[kPositions * kChannels], results[kPositions * kChannels];
    } scratch;
    const int64_t end = std::min(finish_.outputs, begin + kPositions), rows = end - begin;
    const int64_t count = std::min(kChannels, finish_.channels - channel);
    std::fill_n(scratch.sums, rows * kChannels, 0);
    const T* pixels = x + image * taps_.inputs() * finish_.channels + channel;
    for (const convolution::Run& run : taps_.RunsOf(begin, end)) {
      const int32_t* filter = filters_.data() + run.tap * finish_.channels + channel;
      int32_t* sums = scratch.sums + (run.first - begin) * kChannels;
      const T* from = pixels + run.position * finish_.channels;
      for (int64_t i = 0; i < run.count; ++i, sums += kChannels, from += taps_.stride() * finish_.channels) {
        if (count == kChannels) {
          AddProducts(from, filter, kChannels, sums);
        } else {
          AddProducts(from, filter, count, sums);
        }
      }
    }
    finish_.Convert(scratch.sums, kChannels, rows, added_.data() + channel, channel, count, scratch.results);
    finish_.Store(scratch.results, rows, image, begin, channel, count);
  }

  // Padding reads the zero point, so that it adds nothing.
  template <class T>
  [[gnu::always_inline]] void AddProducts(const T* x, const int32_t* filter, int64_t count, int32_t* sums) const {
    const int32_t zero = x_zero_;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c)
      sums[c] = static_cast<int32_t>(static_cast<uint32_t>(sums[c]) +
                                     static_cast<uint32_t>((static_cast<int32_t>(x[c]) - zero) * filter[c]));
  }

  const Taps& taps_;
  int64_t images_;
  DType type_;
  const uint8_t* x_;
  int32_t x_zero_;
  IntegerFinish finish_;
  std::vector<int32_t> filters_;  // [taps, channels]
  std::vector<uint32_t> added_;
};

}  // namespace npu::convolution
