// Depthwise convolutions of planes, as many at a time as a vector has lanes: their pixels are transposed into a padded
// copy that has a vector for each position, and their sums back. A row of a plane seldom fills vectors, its channels
// do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ep/kernels/convolution/channels_last/depthwise_sums.h"
#include "ep/kernels/convolution/finish.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/transposed_block.h"

namespace npu::convolution {

// A kernel of taps.count() weights for each output plane; plane m of an image reads its input plane m / per_channel.
template <class T>
struct DepthwiseOperands {
  Taps taps;
  int64_t planes;        // of the output: images * channels_out
  int64_t channels_out;  // of an image
  int64_t per_channel;
  const T* x;
  const T* weight;
  const T* bias;  // may be null
  Finish finish;
};

// Of one or two dimensions.
template <class T>
class DepthwiseBlocks {
 public:
  // Whether padding is not most of the copy: hostile dilations can need any amount.
  static bool Suits(const Taps& taps) {
    const std::vector<Axis>& axes = taps.axes();
    if (axes.size() > 2) return false;
    double size = 1;
    for (const Axis& axis : axes) size *= static_cast<double>(axis.Extent(axis.out));
    return size <= 4.0 * static_cast<double>(taps.inputs() + taps.outputs());
  }

  explicit DepthwiseBlocks(const DepthwiseOperands<T>& operands)
      : o_(operands),
        vertical_(o_.taps.axes().size() == 2 ? o_.taps.axes()[0] : Axis{.in = 1, .out = 1, .kernel = 1}),
        horizontal_(o_.taps.axes().back()),
        row_pitch_(std::max(horizontal_.Extent(horizontal_.out), horizontal_.before + horizontal_.in) * kLanes),
        taps_{vertical_.kernel, horizontal_.kernel, horizontal_.stride, horizontal_.dilation, kLanes, kLanes} {}

  void Run() const {
    const int64_t blocks = (o_.planes + kLanes - 1) / kLanes, enough = 4 * NumThreads();
    const int64_t row_bytes = row_pitch_ * static_cast<int64_t>(sizeof(float));
    const int64_t fitting = (kCopyBytes / row_bytes - vertical_.Extent(1)) / vertical_.stride + 1;
    const int64_t wanted = std::min(vertical_.out, (enough + blocks - 1) / blocks);
    const int64_t lines = std::clamp<int64_t>(fitting, 1, (vertical_.out + wanted - 1) / wanted);
    const int64_t parts = (vertical_.out + lines - 1) / lines;
    const int64_t work = std::max<int64_t>(1, kLanes * lines * horizontal_.out * o_.taps.count());
    channels_last::WithNeighbours(horizontal_.out, [&](auto outputs) {
      ParallelFor(blocks * parts, std::max<int64_t>(1, kCheapGrain / work), [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t block = unit / parts, part = unit % parts;
          RunBlock<outputs.value>(block * kLanes, std::min<int64_t>(kLanes, o_.planes - block * kLanes),
                                  part * vertical_.out / parts, (part + 1) * vertical_.out / parts);
        }
      });
    });
  }

 private:
  using Vec = simd::Vec;
  static constexpr int64_t kLanes = simd::kLanes;
  static constexpr int64_t kLine = 64 / sizeof(T);
  static constexpr int64_t kCopyBytes = 256 << 10;  // a part of a second-level cache
  // Outputs that are written together; rows of them are no multiple of a page apart.
  static constexpr int64_t kTogether = 256, kPitch = kTogether + kLanes;

  // The lines [begin, end) of `count` planes from `first` on.
  template <int kOutputs>
  void RunBlock(int64_t first, int64_t count, int64_t begin, int64_t end) const {
    static thread_local gemm::AlignedBuffer copy_buffer, sums_buffer, weight_buffer;
    const auto floats = [](gemm::AlignedBuffer& buffer, int64_t size) {
      return static_cast<float*>(buffer.Reserve(size * static_cast<int64_t>(sizeof(float))));
    };
    float* weight = floats(weight_buffer, o_.taps.count() * kLanes);
    float* copy = floats(copy_buffer, vertical_.Extent(end - begin) * row_pitch_);
    const int64_t positions = (end - begin) * horizontal_.out;
    float* sums = floats(sums_buffer, positions * kLanes);
    ReadWeight(first, count, weight);
    ReadPlanes(first, count, begin * vertical_.stride - vertical_.before, vertical_.Extent(end - begin), copy);
    using Pixels = channels_last::PixelsInside<float>;
    const auto sum = channels_last::DepthwiseFunctionOf<kOutputs, Pixels>(taps_);
    float* to = sums;
    for (int64_t line = 0; line < end - begin; ++line, to += horizontal_.out * kLanes) {
      const float* from = copy + line * vertical_.stride * row_pitch_;
      PrefetchResults(first, count, (begin + line) * horizontal_.out);
      for (int64_t output = 0; output < horizontal_.out; output += kOutputs) {
        const int64_t at = std::min(output, horizontal_.out - kOutputs);  // the last one overlaps
        sum(taps_, {from + at * horizontal_.stride * kLanes, vertical_.dilation * row_pitch_, kLanes}, 0, weight,
            to + at * kLanes);
      }
    }
    WritePlanes(first, count, begin * horizontal_.out, positions, sums);
  }

  // [taps][kLanes]
  void ReadWeight(int64_t first, int64_t count, float* to) const {
    const int64_t taps = o_.taps.count();
    const T* rows[kLanes];
    for (int64_t i = 0; i < count; ++i) rows[i] = o_.weight + (first + i) % o_.channels_out * taps;
    for (int64_t k = 0; k < taps; k += kLanes) {
      const int64_t some = std::min(kLanes, taps - k);
      Vec block[kLanes];
      LoadBlock(rows, k, count, some, block);
      simd::Transpose(block);
      for (int64_t i = 0; i < some; ++i) simd::Store(to + (k + i) * kLanes, block[i]);
    }
  }

  // `rows` rows of the planes from `row` on, with their padding: [rows][positions][kLanes].
  void ReadPlanes(int64_t first, int64_t count, int64_t row, int64_t rows, float* to) const {
    const int64_t padding = horizontal_.before * kLanes, width = horizontal_.in;
    const int64_t begin = std::clamp<int64_t>(-row, 0, rows), end = std::clamp(vertical_.in - row, begin, rows);
    std::fill(to, to + begin * row_pitch_, 0.0f);
    std::fill(to + end * row_pitch_, to + rows * row_pitch_, 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      float* line = to + r * row_pitch_;
      std::fill(line, line + padding, 0.0f);
      std::fill(line + padding + width * kLanes, line + row_pitch_, 0.0f);
    }
    const T* planes[kLanes];
    for (int64_t i = 0; i < count; ++i)
      planes[i] = o_.x + (first + i) / o_.per_channel * o_.taps.inputs() + (row + begin) * width;
    // Rows are neighbours in a plane: blocks go on from row to row, unless rows are long.
    float* line = to + begin * row_pitch_ + padding;
    int64_t column = 0;
    for (int64_t at = 0, stop = (end - begin) * width; at < stop; at += kLanes) {
      Vec block[kLanes];
      const int64_t some = std::min(kLanes, stop - at);
      LoadBlock(planes, at, count, some, block);
      simd::Transpose(block);
      if (width - column >= kLanes && some == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) simd::Store(line + (column + i) * kLanes, block[i]);
        column += kLanes;
        if (column == width) column = 0, line += row_pitch_;
        continue;
      }
      for (int64_t i = 0; i < some; ++i) {
        simd::Store(line + column * kLanes, block[i]);
        if (++column == width) column = 0, line += row_pitch_;
      }
    }
  }

  static void LoadBlock(const T* const* planes, int64_t at, int64_t count, int64_t some, Vec (&block)[kLanes]) {
    if (count == kLanes && some == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = simd::LoadFloats(planes[i] + at);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = i < count ? simd::LoadFirst(planes[i] + at, some) : Vec{};
    }
  }

  // Where a line will be written, of all planes: a store to a line that is in no cache waits until it has been read.
  void PrefetchResults(int64_t first, int64_t count, int64_t at) const {
    const T* planes = o_.finish.y.template as<T>() + first * o_.taps.outputs() + at;
    for (int64_t i = 0; i < count; ++i, planes += o_.taps.outputs())
      for (int64_t x = 0; x < horizontal_.out; x += kLine) __builtin_prefetch(planes + x, 1);
  }

  // `positions` outputs of the planes from output `at` of each on.
  void WritePlanes(int64_t first, int64_t count, int64_t at, int64_t positions, const float* sums) const {
    T* planes = o_.finish.y.template as<T>() + first * o_.taps.outputs() + at;
    float bias[kLanes] = {};
    for (int64_t i = 0; o_.bias != nullptr && i < count; ++i) bias[i] = ToFloat(o_.bias[(first + i) % o_.channels_out]);
    alignas(64) float held[kLanes * kPitch];
    for (int64_t begin = 0; begin < positions; begin += kTogether) {
      const int64_t some = std::min(kTogether, positions - begin);
      simd::TransposeMatrix(sums + begin * kLanes, kLanes, some, kLanes, held, kPitch, some);
      for (int64_t i = 0; i < count; ++i)
        WriteRow(held + i * kPitch, bias[i], some, planes + i * o_.taps.outputs() + begin);
    }
    for (int64_t i = 0; i < count; ++i) o_.finish.InPlace((first + i) * o_.taps.outputs() + at, positions);
  }

  // Lines that no store shares with the next one: half of them would wait for the other half.
  static void WriteRow(const float* sums, float bias, int64_t count, T* to) {
    constexpr int64_t kLine = 64 / sizeof(T);
    int64_t p = 0;
    if (count >= kLine) {
      for (; p < kLine; p += kLanes) simd::StoreRounded(simd::Rounded<T>(simd::Load(sums + p) + bias), to + p);
      p -= static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % 64 / sizeof(T));
    }
    for (; p + kLanes <= count; p += kLanes) simd::StoreRounded(simd::Rounded<T>(simd::Load(sums + p) + bias), to + p);
    if (p < count) simd::StoreFirst(simd::Load(sums + p) + bias, to + p, count - p);
  }

  const DepthwiseOperands<T>& o_;
  Axis vertical_, horizontal_;
  int64_t row_pitch_;  // of the copy, in elements
  channels_last::DepthwiseTaps taps_;
};

}  // namespace npu::convolution
