#include "ep/kernels/gemm/blocking.h"

#include <unistd.h>

#include <algorithm>

namespace npu::gemm {

namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t SecondLevelCache() {
  static const int64_t size = [] {
    int64_t bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    constexpr int64_t kSmallest = 256 << 10, kLargest = 2 << 20;
    return std::clamp(bytes, kSmallest, kLargest);
  }();
  return size;
}

// Bytes of a block of A: the rest of the L2 cache holds the current panel of B and the sums. Tile registers are through
// with a panel sooner, so that more of the next panel, of sums and of rows of C is on its way.
int64_t SliverBudget(const MicroKernel& kernel) {
  return kernel.uses_tiles() ? SecondLevelCache() * 3 / 8 : SecondLevelCache() / 2;
}

// Where K is cut, the sums pass by, too. 256 rows with K = 4096 are then cut into four blocks of two chunks of B each,
// 1.08 times as fast as three blocks of three.
int64_t CutSliverBudget(const MicroKernel& kernel) {
  return kernel.uses_tiles() ? SecondLevelCache() * 5 / 16 : SliverBudget(kernel);
}

// Sums that are kept between blocks of K, per thread. Those of tile registers come from the last-level cache: reading A
// from there for every few panels takes longer.
int64_t SumBytes(const MicroKernel& kernel) { return kernel.uses_tiles() ? 4 << 20 : 256 << 10; }

// A panel that is packed or expanded on the fly, per thread: it is read from the L2 cache, or by a single sliver from
// L1.
constexpr int64_t kPanelScratch = 256 << 10;
constexpr int64_t kSmallPanelScratch = 16 << 10;
// Bytes of A that are packed at a time, for all threads: far less than the last-level cache, and so many rows that
// rereading B for the next ones does not matter.
constexpr int64_t kPackedBytes = 4 << 20;
// The minimum work of a thread: less costs more to distribute than it balances. Either bytes of B or multiply-adds
// suffice: a GEMM of one row takes as long as reading its bytes.
constexpr int64_t kGrainBytes = 64 << 10;
constexpr int64_t kGrainWork = 256 << 10;
// A short GEMM, in multiply-adds and, if each panel is read only once, in bytes of B.
constexpr int64_t kShortWork = 128 << 20;
constexpr int64_t kShortBytes = 2 << 20;
constexpr int64_t kRangePanels = 8;
// Slivers for each thread from which on threads split the rows.
constexpr int64_t kSliversApart = 8;
// And of panels that are packed on the fly, once for all threads, if their number leaves a thread idle for more than a
// sixteenth of the time.
constexpr int64_t kFewSliversApart = 4;
constexpr int64_t kLeastIdle = 16;

}  // namespace

Blocking ChooseBlocking(const MicroKernel& kernel, PanelFormat format, RightSide right, int64_t m, int64_t n, int64_t k,
                        int64_t threads) {
  const bool constant_b = right == RightSide::kPacked;
  Blocking out;
  const int64_t panels = PanelCount(n);
  out.slivers = CeilDiv(m, kernel.sliver_rows);
  // Loading a panel takes as long as multiplying this many rows: with more, two passes over a panel overlap the loading
  // of the next one.
  constexpr int64_t kOnePass = 8;
  if (constant_b && kernel.row_multiple == 1 && m > kOnePass) out.slivers = std::max<int64_t>(out.slivers, 2);
  // Slivers of equal size, rounded up to the rows that are computed anyway.
  out.sliver_rows = kernel.StoredRows(CeilDiv(m, out.slivers));

  // Depth: as much of K as lets a useful number of rows stay in the cache.
  const int64_t depth_multiple = std::max<int64_t>(32, ChunkDepth(kernel.sliver_format));
  const int64_t element = ElementBytes(kernel.sliver_format);
  const int64_t rows = std::min<int64_t>(out.slivers * out.sliver_rows, kernel.rows_per_panel);
  int64_t budget = SliverBudget(kernel);
  if (k > budget / (rows * element)) budget = CutSliverBudget(kernel);
  int64_t most = budget / (rows * element);
  const bool expand_for_one = right == RightSide::kExpanded && out.slivers == 1;
  if (!constant_b)
    most =
        std::min(most, (expand_for_one ? kSmallPanelScratch : kPanelScratch) / (kPanelColumns * ElementBytes(format)));
  most = std::max(depth_multiple, most / depth_multiple * depth_multiple);
  out.depth_blocks = CeilDiv(k, most);
  out.depth = out.depth_blocks == 1 ? k : CeilDiv(CeilDiv(k, out.depth_blocks), depth_multiple) * depth_multiple;
  out.depth_blocks = CeilDiv(k, out.depth);

  const int64_t sliver_bytes = SliverBytes(kernel.sliver_format, out.sliver_rows, out.depth);
  out.block_slivers = std::clamp<int64_t>(budget / sliver_bytes, 1, out.slivers);
  out.packed_slivers =
      std::clamp<int64_t>(kPackedBytes / (sliver_bytes * out.depth_blocks), out.block_slivers, out.slivers);
  // Blocks of equal size: panels are read from memory for a short block as for a long one.
  out.packed_slivers = CeilDiv(out.slivers, CeilDiv(out.slivers, out.packed_slivers));
  out.block_slivers = CeilDiv(out.packed_slivers, CeilDiv(out.packed_slivers, out.block_slivers));

  // Threads split the columns first, so that each panel is read by one thread; rows too if there are too few panels, or
  // many rows for tiles: a thread then finds the rows of A in its own cache, where the kernel before has computed them,
  // and packs no others. That saves more than reading the panels twice costs.
  const bool rows_apart = kernel.uses_tiles() && constant_b && out.slivers >= kSliversApart * threads;
  const bool uneven = right == RightSide::kPackedOnTheFly && panels * PanelBytes(format, k) <= kMostPackedAtOnce &&
                      (CeilDiv(panels, threads) * threads - panels) * kLeastIdle > panels &&
                      out.slivers >= kFewSliversApart * threads;
  const bool split = rows_apart || uneven;
  if (out.slivers > 1 && (split || panels < threads)) {
    out.row_parts = split ? threads : std::min(out.slivers, CeilDiv(threads, panels));
    out.block_slivers = std::min(out.block_slivers, CeilDiv(out.slivers, out.row_parts));
  }
  out.group_panels = panels;
  if (out.depth_blocks > 1) {
    const int64_t tile_bytes = out.sliver_rows * kPanelColumns * static_cast<int64_t>(sizeof(float));
    out.group_panels = std::clamp<int64_t>(SumBytes(kernel) / (tile_bytes * out.block_slivers), 1, panels);
    if (expand_for_one) out.group_panels = 1;  // a panel is read from its beginning to its end
  }
  const int64_t panel_work = CeilDiv(m, out.row_parts) * k * kPanelColumns;
  const int64_t panel_bytes = PanelBytes(format, k);
  out.panel_grain = std::max<int64_t>(1, std::min(kGrainBytes / panel_bytes, kGrainWork / panel_work));
  // Nothing overlaps with loading the first panel of a range. So in a short GEMM ranges have many panels, or there is
  // one range per thread; a long one is instead balanced between threads that other work may slow down, unless it has
  // tiles: those are through with a panel before the next one is loaded.
  const bool is_short = m * n * k <= kShortWork && (out.slivers > 1 || panels * panel_bytes <= kShortBytes);
  if (constant_b && (is_short || kernel.uses_tiles())) {
    const int64_t ranges = threads * std::max<int64_t>(1, panels / (threads * kRangePanels));
    out.panel_grain = std::max(out.panel_grain, panels / ranges);
  }
  return out;
}

}  // namespace npu::gemm
