// How a GEMM is partitioned: along K and M so that a block of A stays in the L2 cache, and into equal parts for the
// threads.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/microkernel.h"

namespace npu::gemm {

// Bytes of panels that are packed before they are multiplied, if several threads multiply each: they stay in the
// last-level cache.
inline constexpr int64_t kMostPackedAtOnce = 4 << 20;

struct Blocking {
  int64_t sliver_rows = 1;  // of every sliver except possibly the last
  int64_t slivers = 0;      // of the whole GEMM
  int64_t depth = 0;        // of every block of K except possibly the last
  int64_t depth_blocks = 1;
  int64_t block_slivers = 1;   // in a block of A
  int64_t packed_slivers = 1;  // slivers packed before the threads multiply them
  int64_t group_panels = 1;    // panels computed in turn; their sums are kept between blocks of K
  int64_t row_parts = 1;       // parts into which the threads split the slivers
  int64_t panel_grain = 1;     // the minimum number of panels that a thread takes at a time
};

// The panels of B are packed in advance, packed on the fly, or expanded from another form where they are multiplied.
enum class RightSide { kPacked, kPackedOnTheFly, kExpanded };

// `threads` >= 1; m, n, k >= 1.
Blocking ChooseBlocking(const MicroKernel& kernel, PanelFormat format, RightSide right, int64_t m, int64_t n, int64_t k,
                        int64_t threads);

}  // namespace npu::gemm
