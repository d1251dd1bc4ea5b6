// How a product is cut: along K and M so that a block of A stays in the second-level cache, and into equal parts for
// the threads.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/microkernel.h"

namespace npu::gemm {

struct Blocking {
  int64_t sliver_rows = 1;  // of every sliver but perhaps the last
  int64_t slivers = 0;      // of the whole product
  int64_t depth = 0;        // of every block of K but perhaps the last
  int64_t depth_blocks = 1;
  int64_t block_slivers = 1;   // in a block of A
  int64_t packed_slivers = 1;  // that are packed before the threads multiply them
  int64_t group_panels = 1;    // that are computed in turn; their sums are kept between blocks of K
  int64_t row_parts = 1;       // of the slivers, for the threads
  int64_t panel_grain = 1;     // fewest panels that a thread takes at once
};

// Where the panels of B come from: they are packed already, packed on the way, or expanded from integers.
enum class RightSide { kPacked, kPackedOnTheWay, kQuantized };

// `threads` >= 1; m, n, k >= 1.
Blocking ChooseBlocking(const MicroKernel& kernel, PanelFormat format, RightSide right, int64_t m, int64_t n, int64_t k,
                        int64_t threads);

}  // namespace npu::gemm
