// Convolutions of groups of one channel, each output plane of one input plane: no product of matrices, but sums of
// shifted rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/finish.h"
#include "ep/kernels/convolution/padded_plane.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/gemm/vector.h"
#include "ep/kernels/pooling/rows.h"

namespace npu::convolution {

// A kernel of taps.count() weights for each output plane; plane m reads input plane m / per_channel. Sums are computed
// in float (double for float64) and rounded once.
template <class T>
struct Depthwise {
  using C = ComputeType<T>;
  Taps taps;
  int64_t planes;        // of the output: images * channels * per_channel
  int64_t channels_out;  // of an image
  int64_t per_channel;
  const T* x;
  const T* weight;
  const T* bias;  // may be null
  Finish finish;

  void Run() const {
    const int64_t work = std::max<int64_t>(1, taps.outputs() * taps.count());
    ParallelFor(planes, std::max<int64_t>(1, kCheapGrain / work),
                [this](int64_t begin, int64_t end) { Planes(begin, end); });
  }

 private:
  void Planes(int64_t begin, int64_t end) const {
    pooling::RowReader<T> reader(taps.inputs());
    pooling::RowWriter<T> writer(taps.outputs());
    std::vector<C> kernel(static_cast<size_t>(taps.count()));
    const auto each = [&](const auto& convolve) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t m = plane % channels_out;
        for (int64_t k = 0; k < taps.count(); ++k)
          kernel[static_cast<size_t>(k)] = Upcast(weight[m * taps.count() + k]);
        const C* from = reader(x + plane / per_channel * taps.inputs(), taps.inputs());
        T* to = finish.y.as<T>() + plane * taps.outputs();
        convolve(from, kernel.data(), bias == nullptr ? C{0} : Upcast(bias[m]), writer.Values(to));
        writer.Commit(to, taps.outputs());
        finish.InPlace(plane * taps.outputs(), taps.outputs());
      }
    };
    if (PaddedPlane::Suits(taps)) {
      const PaddedPlane padded(taps);
      std::vector<C> plane(static_cast<size_t>(padded.size() + kBlock)),
          row(static_cast<size_t>(padded.length() + kBlock));
      each([&](const C* from, const C* weights, C start, C* to) {
        padded.Write(from, plane.data());
        SumLongRow(padded, plane.data(), weights, start, row.data());
        padded.Read(row.data(), to);
      });
    } else {
      const std::vector<convolution::Run> runs = taps.RunsOf(0, taps.outputs());
      each([&](const C* from, const C* weights, C start, C* to) { SumRuns(runs, from, weights, start, to); });
    }
  }

  void SumRuns(const std::vector<convolution::Run>& runs, const C* from, const C* weights, C start, C* to) const {
    std::fill(to, to + taps.outputs(), start);
    WithStride(taps.stride(), [&](auto stride) {
      for (const convolution::Run& run : runs) {
        const C* in = from + run.position;
        C* out = to + run.first;
#pragma omp simd
        for (int64_t i = 0; i < run.count; ++i) out[i] += weights[run.tap] * in[i * stride];
      }
    });
  }

  // In blocks whose sums stay in registers, up to a block further than the row.
  static constexpr int kVectors = 8, kVectorBytes = 4 * gemm::kLanes;
  static constexpr int64_t kLanes = kVectorBytes / sizeof(C), kBlock = kVectors * kLanes;
  using Vector __attribute__((vector_size(kVectorBytes), aligned(alignof(C)), may_alias)) = C;

  static void SumLongRow(const PaddedPlane& padded, const C* from, const C* weights, C start, C* to) {
    int64_t first = 0;
    for (; padded.length() - first > kBlock; first += kBlock)
      SumBlock<kVectors>(padded, from, weights, start, first, to);
    // Of planes of 7 × 7 and 14 × 14 the rest is most: of as many vectors as it has.
    static constexpr auto kOfVectors = SumBlocks(std::make_integer_sequence<int, kVectors>{});
    kOfVectors[(padded.length() - first - 1) / kLanes](padded, from, weights, start, first, to);
  }
  using BlockFunction = void (*)(const PaddedPlane&, const C*, const C*, C, int64_t, C*);
  template <int... kCounts>
  static constexpr std::array<BlockFunction, kVectors> SumBlocks(std::integer_sequence<int, kCounts...>) {
    return {&SumBlock<kCounts + 1>...};
  }
  template <int kCount>
  static void SumBlock(const PaddedPlane& padded, const C* from, const C* weights, C start, int64_t first, C* to) {
    Vector sum[kCount];
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) sum[v] = Vector{} + start;
    for (int64_t tap = 0; tap < padded.taps(); ++tap) {
      const auto* in = reinterpret_cast<const Vector*>(from + first + padded.offset(tap));
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) sum[v] += weights[tap] * in[v];
    }
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) reinterpret_cast<Vector*>(to + first)[v] = sum[v];
  }
};

}  // namespace npu::convolution
