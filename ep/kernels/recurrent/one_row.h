// One row times a matrix in panels, again and again, as each step of a single sequence does.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/gemm/microkernel.h"

namespace npu::recurrent {

// c = a * b, in float32. In odd turns the panels are read from the last to the first: a turn begins with those that the
// turn before has left in the cache. Of panels as large as the cache, turns in one order would find few of them there:
// with 1 MB of both they take 1.3 times as long.
inline void MultiplyOneRow(const float* a, const gemm::PackedMatrix& b, int64_t turn, float* c) {
  constexpr auto kFormat = gemm::PanelFormat::kFloat32;
  constexpr int64_t kWorthAThread = 64 << 10;  // bytes
  const int64_t panels = gemm::PanelCount(b.columns), bytes = gemm::PanelBytes(kFormat, b.rows);
  // As many ranges as threads: a thread then finds its panels in its own cache.
  const int64_t grain = std::max((panels + NumThreads() - 1) / NumThreads(), kWorthAThread / bytes + 1);
  const gemm::TileFunction multiply = gemm::FloatKernel(kFormat)->functions[1];
  const bool backwards = turn % 2 != 0;
  ParallelFor(panels, grain, [&](int64_t begin, int64_t end) {
    const auto panel_at = [&](int64_t i) { return backwards ? begin + end - 1 - i : i; };
    const auto address = [&](int64_t panel) { return static_cast<const char*>(b.data) + panel * bytes; };
    for (int64_t i = begin; i < end; ++i) {
      alignas(64) float tile[gemm::kPanelColumns];
      const int64_t panel = panel_at(i), first = panel * gemm::kPanelColumns;
      const gemm::Prefetch next{address(panel_at(std::min(i + 1, end - 1))), gemm::RowBytes(kFormat)};
      multiply({a, 0, gemm::kChunkBytes}, address(panel), next, b.rows, tile, false);
      std::copy_n(tile, std::min<int64_t>(gemm::kPanelColumns, b.columns - first), c + first);
    }
  });
}

}  // namespace npu::recurrent
