// The end of a convolution with channels last: bias, residual and activation of sums that are in the first-level cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ep/kernels/activation/output_activation.h"
#include "ep/kernels/convolution/channels_last/rounding.h"
#include "ep/kernels/float_vector.h"

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

// T: the type of values that are channels last.
template <class T>
struct Finish {
  OutputActivation activation;
  const T* residual;  // of the output's shape and order; may be null
  T* y;
  float* floats;     // instead of y: results that are not to be rounded
  int64_t channels;  // of the output

  // Of a result.
  int64_t bytes() const { return y != nullptr ? sizeof(T) : sizeof(float); }
  const char* ResultAt(int64_t element) const {
    return y != nullptr ? reinterpret_cast<const char*>(y + element) : reinterpret_cast<const char*>(floats + element);
  }

  // `rows` rows of sums, kPitch apart, to the channels [channel, channel + count) of the pixels from `pixel` on; `f` is
  // the activation's formula.
  template <int kPitch, class F>
  void Store(const F& f, const float* sums, int64_t rows, const float* bias, int64_t pixel, int64_t channel,
             int64_t count) const {
    if constexpr (!std::is_same_v<T, float>)
      if (y == nullptr) return StoreTo<kPitch>(floats, f, sums, rows, bias, pixel, channel, count);
    StoreTo<kPitch>(y, f, sums, rows, bias, pixel, channel, count);
  }

 private:
  static constexpr int kSome = 16, kFew = 4;

  template <int kPitch, class Y, class F>
  void StoreTo(Y* to, const F& f, const float* sums, int64_t rows, const float* bias, int64_t pixel, int64_t channel,
               int64_t count) const {
    if (count == kPitch) return StoreBlocks<kPitch, kPitch>(to, f, sums, rows, bias, pixel, channel, count);
    if (count >= kSome) return StoreBlocks<kPitch, kSome>(to, f, sums, rows, bias, pixel, channel, count);
    if (count >= kFew) return StoreBlocks<kPitch, kFew>(to, f, sums, rows, bias, pixel, channel, count);
    StoreBlocks<kPitch, 1>(to, f, sums, rows, bias, pixel, channel, count);
  }

  // A block of the residual as floats.
  template <int kBlock>
  struct Upcast {
    explicit Upcast(const float* from) : data(from) {}
    explicit Upcast(const BFloat16* from) : data(floats) {
      if constexpr (kBlock % simd::kLanes == 0) {
#pragma GCC unroll 8
        for (int i = 0; i < kBlock; i += simd::kLanes) simd::Store(floats + i, simd::LoadFloats(from + i));
      } else {
        ToFloat(from, floats, kBlock);
      }
    }
    const float* data;
    alignas(64) float floats[std::is_same_v<T, float> ? 1 : kBlock];
  };

  // In blocks of one size, the last of which overlaps.
  template <int kPitch, int kBlock, class Y, class F>
  void StoreBlocks(Y* results, const F& f, const float* sums, int64_t rows, const float* bias, int64_t pixel,
                   int64_t channel, int64_t count) const {
    constexpr int64_t kTogether = 12;  // rows that are rounded together
    alignas(64) float values[std::is_same_v<Y, float> ? 1 : kTogether * kPitch];
    for (int64_t r = 0; r < rows; ++r, sums += kPitch) {
      const int64_t first = (pixel + r) * channels + channel;
      for (int64_t block = 0; block < count; block += kBlock) {
        const int64_t at = std::min(block, count - kBlock);
        const float *from = sums + at, *more = bias + at;
        float* to;
        if constexpr (std::is_same_v<Y, float>) {
          to = results + first + at;
        } else {
          to = values + r % kTogether * kPitch + at;
        }
        if (residual == nullptr) {
#pragma omp simd
          for (int i = 0; i < kBlock; ++i) to[i] = f(from[i] + more[i]);
        } else {
          const Upcast<kBlock> add(residual + first + at);
#pragma omp simd
          for (int i = 0; i < kBlock; ++i) to[i] = f(from[i] + more[i] + add.data[i]);
        }
      }
      if constexpr (!std::is_same_v<Y, float>) {
        const int64_t done = r % kTogether + 1;
        if (done == kTogether || r + 1 == rows)
          RoundRows(values, kPitch, done, count, results + first - (done - 1) * channels, channels);
      }
    }
  }
};

}  // namespace npu::channels_last
