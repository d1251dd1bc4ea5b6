// Blocks of a product in tile registers. Decision 0020 gives the reasons for the order of the loops.
#include <algorithm>

#include "ep/kernels/gemm/amx_work.h"
#include "ep/kernels/gemm/product.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu::gemm {

namespace {

// A thread that multiplies a block of A by so many columns packs it for itself: packed rows are read faster than rows
// in place, and lines that another core has just written come slowly.
constexpr int64_t kOwnColumns = 608;

void OrderStreamingStores() {
#if defined(__AVX512F__)
  _mm_sfence();
#endif
}

}  // namespace

void Product::RunAmxBlock(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end,
                          int64_t next_panel) {
  const int64_t slivers = sliver_end - sliver_begin, panels = panel_end - panel_begin;
  const int64_t full_rows = blocking_.sliver_rows, tile_elements = full_rows * kPanelColumns;
  const bool one_block = blocking_.depth_blocks == 1;
  const AmxTurns most = TurnsOf(blocking_.depth, slivers);
  // Sums of all tiles between blocks of K; else of the tiles of a turn, and of the one that is being stored.
  const int64_t ring = most.slivers + 1, kept_tiles = one_block ? ring : slivers * panels;
  float* const sums = static_cast<float*>(
      ProductScratch::OfThisThread().sums.Reserve(kept_tiles * tile_elements * static_cast<int64_t>(sizeof(float))));
  int64_t ring_begin = 0;
  const int64_t row_bytes = RowBytes(multiplied_format_) / RowDepth(multiplied_format_);  // of one row of K
  AmxWork work{.epilogue = &*to_rows_};

  for (int64_t kb = 0; kb < blocking_.depth_blocks; ++kb) {
    const int64_t k0 = kb * blocking_.depth, depth = DepthOf(kb);
    const bool last_block = kb + 1 == blocking_.depth_blocks;
    const AmxTurns turns = TurnsOf(depth, slivers);
    // A tile takes little more time than a few divisions: the addresses of whole slivers are computed from one.
    const char* own = own_product_ != 0 ? PackOwnSlivers(sliver_begin, sliver_end, kb) : nullptr;
    const auto slivers_from = [&](int64_t s) {
      return own ? PackedSlivers(own + (s - sliver_begin) * PackedSliverBytes(), s) : SliversFrom(s, kb);
    };
    const SliverRun whole = slivers_from(sliver_begin);

    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const int64_t n0 = p * kPanelColumns, columns = ColumnsAt(n0);
      const char* b = static_cast<const char*>(PanelOf(p, k0, depth));
      const int32_t* column_sums = integers_ ? ColumnSums(p, p - panel_begin, panels, kb) : nullptr;
      work.streams = p + 1 < panel_end ? StreamsFrom(b, slivers, kb, p + 1, kb)
                     : last_block      ? StreamsFrom(b, slivers, kb, next_panel, 0)
                                       : StreamsFrom(b, slivers, kb, panel_begin, kb + 1);

      for (int64_t g = sliver_begin; g < sliver_end; g += turns.slivers) {
        const int64_t stop = std::min(sliver_end, g + turns.slivers);
        for (int64_t k = 0; k < depth; k += turns.depth) {
          const int64_t chunk_depth = std::min(turns.depth, depth - k);
          const bool last = last_block && k + chunk_depth == depth;
          int64_t in_ring = ring_begin;
          for (int64_t s = g; s < stop; ++s) {
            const int64_t kept = one_block ? in_ring : (p - panel_begin) * slivers + s - sliver_begin;
            float* const tile = sums + kept * tile_elements;
            in_ring = in_ring + 1 == ring ? 0 : in_ring + 1;
            const int64_t m0 = s * full_rows, rows = SliverRowsAt(s);
            const Sliver sliver = rows == full_rows ? whole.At(s - sliver_begin, k) : slivers_from(s).At(0, k);
            if (last && !to_rows_->past_caches()) PrefetchResult(work.result, m0, rows, n0);
            work.next_sums = kb > 0 && k == 0 ? tile + tile_elements : nullptr;
            kernel_.amx_functions[rows == full_rows ? full_rows : kernel_.StoredRows(rows)](
                sliver, b + k * row_bytes, work, chunk_depth, tile, kb > 0 || k > 0);
            if (last) {
              work.StoreFinished(work.finished.rows);
              work.finished = {tile, rows, columns, m0, n0, column_sums};
              work.result.result_rows = 0;
            }
          }
          if (k + chunk_depth == depth) ring_begin = in_ring;
        }
      }
    }
  }
  StoreHeldTiles(work);
  work.StoreFinished(work.finished.rows);
  if (to_rows_->past_caches()) OrderStreamingStores();
}

// Chunks of equal depth; one chunk where B is read once.
Product::AmxTurns Product::TurnsOf(int64_t depth, int64_t slivers) const {
  if (depth <= kernel_.chunk_depth || slivers == 1) return {depth, 1};
  const int64_t chunks = (depth + kernel_.chunk_depth - 1) / kernel_.chunk_depth, multiple = kernel_.depth_multiple;
  return {((depth + chunks - 1) / chunks + multiple - 1) / multiple * multiple,
          std::min<int64_t>(kernel_.group_slivers, slivers)};
}

// What comes after block `kb` of panel `b`, in as many steps as that takes: block `next_kb` of `next_panel`. A panel
// that is read once is prefetched while it is read.
PanelStreams Product::StreamsFrom(const void* b, int64_t slivers, int64_t kb, int64_t next_panel, int64_t next_kb) {
  if (!packed_b_ || quantized_bits_) return {};
  const int64_t depth = DepthOf(kb), bytes = PanelBytes(format_, depth) - HeaderBytes(format_);
  const int64_t steps = (depth + kernel_.depth_multiple - 1) / kernel_.depth_multiple;
  if (slivers == 1 && multiplied_format_ != format_) return {};  // splitting the panel prefetches it
  if (slivers == 1) return PanelStreams::Ahead(b, bytes, Prefetch::Distance(blocking_.sliver_rows), bytes / steps);
  if (next_panel >= PanelCount(b_.columns)) return {};
  const int64_t next_bytes = PanelBytes(format_, DepthOf(next_kb)) - HeaderBytes(format_);
  return {PackedPanelOf(next_panel, next_kb * blocking_.depth, 0), next_bytes, steps * slivers};
}

bool Product::PacksOwnSlivers() const {
  return uses_tiles_ && packed_b_ && blocking_.slivers > 1 &&
         b_.columns * blocking_.row_parts >= kOwnColumns * NumThreads();
}

const char* Product::PackOwnSlivers(int64_t sliver_begin, int64_t sliver_end, int64_t kb) const {
  ProductScratch& scratch = ProductScratch::OfThisThread();
  char* const slivers = static_cast<char*>(scratch.own_a.Reserve((sliver_end - sliver_begin) * PackedSliverBytes()));
  if (scratch.own_product == own_product_ && scratch.own_sliver == sliver_begin && scratch.own_block == kb)
    return slivers;
  for (int64_t s = sliver_begin; s < sliver_end; ++s)
    PackSliverTo(s, kb, slivers + (s - sliver_begin) * PackedSliverBytes());
  scratch.own_product = own_product_;
  scratch.own_sliver = sliver_begin;
  scratch.own_block = kb;
  return slivers;
}

}  // namespace npu::gemm
