// Tiles of integers one by one, for operators that find their own rows and finish their own sums.
#pragma once

#include "ep/kernels/gemm/amx_work.h"
#include "ep/kernels/gemm/microkernel.h"

namespace npu::gemm {

// Multiplies slivers with one panel of quads. Create one within ScopedTiles.
class SingleTiles {
 public:
  // `depth`: of K. While `tiles` tiles are multiplied, the panel behind this one is prefetched; 0: there is none.
  SingleTiles(const MicroKernel& kernel, const char* panel, int64_t depth, int64_t tiles)
      : kernel_(kernel), rows_(panel + HeaderBytes(PanelFormat::kQuads)), depth_(depth) {
    const int64_t bytes = PanelBytes(PanelFormat::kQuads, depth), stored = PaddedDepth(PanelFormat::kQuads, depth);
    if (kernel.uses_tiles()) {
      const int64_t steps = stored / kernel.depth_multiple * tiles;
      work_.epilogue = &NoEpilogue();
      if (tiles > 0) work_.streams = {rows_ + bytes, bytes - HeaderBytes(PanelFormat::kQuads), steps};
    } else {
      constexpr int64_t kRow = kPanelColumns * 4;
      prefetch_.data = tiles > 0 ? rows_ + bytes : rows_;
      prefetch_.step = tiles > 0 ? (kRow + tiles - 1) / tiles : 0;
    }
  }

  // sums[kernel.StoredRows(rows)][kPanelColumns], int32 values.
  void Sum(const Sliver& a, int64_t rows, float* sums) {
    const int64_t stored = kernel_.StoredRows(rows);
    if (kernel_.uses_tiles()) {
      kernel_.amx_functions[stored](a, rows_, work_, depth_, sums, false);
      return StoreHeldTiles(work_);
    }
    kernel_.functions[stored](a, rows_, prefetch_, depth_, sums, false);
    prefetch_.data += (depth_ + 3) / 4 * prefetch_.step;
  }

  // Micro-kernels ask it before they see that there is no tile to store.
  static const RowEpilogue& NoEpilogue() {
    static const Result nowhere{nullptr, DType::kInt8, 0};
    static const Epilogue nothing;
    static const RowEpilogue none(nowhere, 0, nothing, nullptr);
    return none;
  }

 private:
  const MicroKernel& kernel_;
  const char* rows_;
  int64_t depth_;
  AmxWork work_ = {};
  Prefetch prefetch_ = {};
};

}  // namespace npu::gemm
