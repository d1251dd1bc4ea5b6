// The innermost functions: a sliver of A times a panel of B is a tile of C in float32.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/packing.h"

namespace npu::gemm {

// tile[rows][kPanelColumns] (+)= a * b over `depth` steps of K. `a` is a sliver, `b` a panel; all are 64-byte aligned,
// except an `a` of one row, which may be a row of the caller's own matrix when no element needs conversion and the
// depth is even. Reads nothing beyond them.
using TileFunction = void (*)(const void* a, const void* b, int64_t depth, float* tile, bool accumulate);

inline constexpr int kMaxSliverRows = 32;

struct MicroKernel {
  SliverFormat sliver_format;
  int sliver_rows;                                  // the most rows that it takes
  int row_multiple = 1;                             // slivers are stored with a multiple of these many rows
  TileFunction functions[kMaxSliverRows + 1] = {};  // by stored rows

  int StoredRows(int rows) const { return (rows + row_multiple - 1) / row_multiple * row_multiple; }
};

// The kernel of this machine for panels of `format` and a product of `m` rows.
const MicroKernel& SelectKernel(PanelFormat format, int64_t m);

// Those of one instruction set; null when this build or machine lacks it.
const MicroKernel* FloatKernel(PanelFormat format);
const MicroKernel* Bf16Kernel();  // AVX512_BF16
const MicroKernel* AmxKernel(PanelFormat format);

// Call around the micro-kernels of one thread: gives it the tile registers where the kernels use them.
class ScopedTiles {
 public:
  explicit ScopedTiles(const MicroKernel& kernel);
  ~ScopedTiles();
  ScopedTiles(const ScopedTiles&) = delete;
  ScopedTiles& operator=(const ScopedTiles&) = delete;

 private:
  bool active_;
};

// A panel is read once, front to back, well ahead of its use: further ahead than this, prefetching loses.
inline constexpr int64_t kPrefetchBytes = 2048;

}  // namespace npu::gemm
