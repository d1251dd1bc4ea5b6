// Convolutions of groups of one channel, each output plane of one input plane: no product of matrices, but sums of
// shifted rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/depthwise_blocks.h"
#include "ep/kernels/convolution/padded_plane.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/gemm/vector.h"
#include "ep/kernels/pooling/rows.h"

namespace npu::convolution {

// Sums are computed in float (double for float64) and rounded once.
template <class T>
struct Depthwise {
  using C = ComputeType<T>;
  DepthwiseOperands<T> operands;

  void Run() const {
    if constexpr (std::is_same_v<C, float>)
      if (DepthwiseBlocks<T>::Suits(operands.taps) && !FewTaps()) return DepthwiseBlocks<T>(operands).Run();
    const int64_t work = std::max<int64_t>(1, operands.taps.outputs() * operands.taps.count());
    ParallelFor(operands.planes, std::max<int64_t>(1, kCheapGrain / work),
                [this](int64_t begin, int64_t end) { Planes(begin, end); });
  }

 private:
  // Whether planes are summed as fast as they are transposed: with 3 × 3 neighbouring taps and as many outputs.
  bool FewTaps() const {
    constexpr int64_t kFew = 9;
    const std::vector<Axis>& axes = operands.taps.axes();
    return operands.taps.count() <= kFew &&
           std::all_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.stride == 1; });
  }

  void Planes(int64_t begin, int64_t end) const {
    const auto& [taps, planes, channels_out, per_channel, x, weight, bias, finish] = operands;
    pooling::RowReader<T> reader(taps.inputs());
    pooling::RowWriter<T> writer(taps.outputs());
    std::vector<C> kernel(static_cast<size_t>(taps.count()));
    const auto each = [&](const auto& convolve) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t m = plane % channels_out;
        for (int64_t k = 0; k < taps.count(); ++k)
          kernel[static_cast<size_t>(k)] = Upcast(weight[m * taps.count() + k]);
        const C* from = reader(x + plane / per_channel * taps.inputs(), taps.inputs());
        T* to = finish.y.template as<T>() + plane * taps.outputs();
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
    std::fill(to, to + operands.taps.outputs(), start);
    WithStride(operands.taps.stride(), [&](auto stride) {
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
