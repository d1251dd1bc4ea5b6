// One row times a matrix in panels, again and again, as each step of a single sequence does.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::recurrent {

// Panels that are read side by side: an element of the row is then loaded once for all of them.
inline constexpr int kPanelsAtOnce = gemm::kLanes == 16 ? 4 : 2;

// tile[kPanelsAtOnce][kPanelColumns] = a * panels, that follow each other by `bytes`. Nothing is prefetched: the
// panels of a step are in the second-level cache, where a prefetch takes one of the buffers that loads need (1 MB of
// panels: 10.5 us with and 7 us without), and beyond that cache the processor's own prefetchers follow the streams.
inline void MultiplyPanels(const float* a, int64_t depth, const char* panels, int64_t bytes, float* tile) {
  using gemm::Vec;
  Vec sum[2][kPanelsAtOnce][2] = {};  // of even and odd rows, which need not wait for each other
  const auto step = [&](int64_t k, int chain) __attribute__((always_inline)) {
    const float x = a[k];
#pragma GCC unroll 4
    for (int i = 0; i < kPanelsAtOnce; ++i) {
      const Vec* row = reinterpret_cast<const Vec*>(panels + i * bytes) + 2 * k;
      sum[chain][i][0] += x * row[0];
      sum[chain][i][1] += x * row[1];
    }
  };
  int64_t k = 0;
  for (; k + 1 < depth; k += 2) {
    step(k, 0);
    step(k + 1, 1);
  }
  if (k < depth) step(k, 0);
#pragma GCC unroll 4
  for (int i = 0; i < kPanelsAtOnce; ++i) {
    reinterpret_cast<Vec*>(tile)[2 * i] = sum[0][i][0] + sum[1][i][0];
    reinterpret_cast<Vec*>(tile)[2 * i + 1] = sum[0][i][1] + sum[1][i][1];
  }
}

// c = a * b, in float32. In odd turns the panels are read from the last to the first: a turn begins with those that the
// turn before has left in the cache. Of panels as large as the cache, turns in one order would find few of them there:
// with 1 MB of both they take 1.3 times as long.
inline void MultiplyOneRow(const float* a, const gemm::PackedMatrix& b, int64_t turn, float* c) {
  constexpr auto kFormat = gemm::PanelFormat::kFloat32;
  constexpr int64_t kWorthAThread = 64 << 10;  // bytes
  const int64_t panels = gemm::PanelCount(b.columns), bytes = gemm::PanelBytes(kFormat, b.rows);
  // As many ranges as threads: a thread then finds its panels in its own cache.
  const int64_t grain = std::max((panels + NumThreads() - 1) / NumThreads(), kWorthAThread / bytes + 1);
  const gemm::TileFunction multiply_one = gemm::FloatKernel(kFormat)->functions[1];
  const bool backwards = turn % 2 != 0;
  ParallelFor(panels, grain, [&](int64_t begin, int64_t end) {
    const int64_t groups = (end - begin + kPanelsAtOnce - 1) / kPanelsAtOnce;
    for (int64_t i = 0; i < groups; ++i) {
      alignas(64) float tile[kPanelsAtOnce * gemm::kPanelColumns];
      const int64_t first = begin + (backwards ? groups - 1 - i : i) * kPanelsAtOnce,
                    count = std::min<int64_t>(kPanelsAtOnce, end - first), column = first * gemm::kPanelColumns;
      const char* data = static_cast<const char*>(b.data) + first * bytes;
      if (count == kPanelsAtOnce) {
        MultiplyPanels(a, b.rows, data, bytes, tile);
      } else {
        const gemm::Prefetch nothing{data, 0};
        for (int64_t p = 0; p < count; ++p)
          multiply_one({a, 0, gemm::kChunkBytes}, data + p * bytes, nothing, b.rows, tile + p * gemm::kPanelColumns,
                       false);
      }
      std::copy_n(tile, std::min(count * gemm::kPanelColumns, b.columns - column), c + column);
    }
  });
}

}  // namespace npu::recurrent
