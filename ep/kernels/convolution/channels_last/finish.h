// The end of a convolution with channels last: bias, residual and activation of sums that are in the first-level cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/activation/output_activation.h"

namespace npu::channels_last {

// The bias of the channels [channel, channel + count) of a block of kWidth, and zeros beyond; `bias` may be null. Whole
// blocks are read in place: a copy of each would take longer than a short sum.
template <int kWidth>
class BlockBias {
 public:
  BlockBias(const float* bias, int64_t channel, int64_t count)
      : data_(bias != nullptr && count == kWidth ? bias + channel : few_) {
    if (bias != nullptr && count < kWidth) std::copy_n(bias + channel, count, few_);
  }
  BlockBias(const BlockBias&) = delete;
  BlockBias& operator=(const BlockBias&) = delete;
  const float* data() const { return data_; }

 private:
  alignas(64) float few_[kWidth] = {};
  const float* data_;
};

struct Finish {
  OutputActivation activation;
  const float* residual;  // of the output's shape and order; may be null
  float* y;
  int64_t channels;  // of the output

  // `rows` rows of sums, kPitch apart, to the channels [channel, channel + count) of the pixels from `pixel` on; `f` is
  // the activation's formula.
  template <int kPitch, class F>
  void Store(const F& f, const float* sums, int64_t rows, const float* bias, int64_t pixel, int64_t channel,
             int64_t count) const {
    if (count == kPitch) return StoreBlocks<kPitch, kPitch>(f, sums, rows, bias, pixel, channel, count);
    if (count >= kSome) return StoreBlocks<kPitch, kSome>(f, sums, rows, bias, pixel, channel, count);
    if (count >= kFew) return StoreBlocks<kPitch, kFew>(f, sums, rows, bias, pixel, channel, count);
    StoreBlocks<kPitch, 1>(f, sums, rows, bias, pixel, channel, count);
  }

 private:
  static constexpr int kSome = 16, kFew = 4;

  // In blocks of one size, the last of which overlaps.
  template <int kPitch, int kBlock, class F>
  void StoreBlocks(const F& f, const float* sums, int64_t rows, const float* bias, int64_t pixel, int64_t channel,
                   int64_t count) const {
    for (int64_t r = 0; r < rows; ++r, sums += kPitch) {
      const int64_t first = (pixel + r) * channels + channel;
      for (int64_t block = 0; block < count; block += kBlock) {
        const int64_t at = std::min(block, count - kBlock);
        const float *from = sums + at, *more = bias + at;
        float* to = y + first + at;
        if (residual == nullptr) {
#pragma omp simd
          for (int i = 0; i < kBlock; ++i) to[i] = f(from[i] + more[i]);
        } else {
          const float* add = residual + first + at;
#pragma omp simd
          for (int i = 0; i < kBlock; ++i) to[i] = f(from[i] + more[i] + add[i]);
        }
      }
    }
  }
};

}  // namespace npu::channels_last
