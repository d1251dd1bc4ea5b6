#include "ep/kernels/gemm/product.h"

#include <algorithm>
#include <atomic>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/quantized.h"
#include "ep/kernels/gemm/split_float16.h"

namespace npu::gemm {

namespace {

constexpr int64_t kUpcastSlivers = 3;
// Of panels that are packed together: a part of a second-level cache.
constexpr int64_t kTogetherBytes = 192 << 10;
// Packing less than this of A costs more in waking a thread than it saves.
constexpr int64_t kPackGrainBytes = 32 << 10;

std::atomic<uint64_t> last_product{0};

PanelFormat MultipliedFormat(const MicroKernel& kernel, PanelFormat format) {
  if (kernel.sliver_format == SliverFormat::kSplitFloat16) return PanelFormat::kSplitFloat16;
  return kernel.sliver_format == SliverFormat::kWords ? PanelFormat::kWords : format;
}

}  // namespace

ProductScratch& ProductScratch::OfThisThread() {
  static thread_local ProductScratch scratch;
  return scratch;
}

Product::Product(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, DType stored_b,
                 const Result& c, const Epilogue& epilogue, const Dequantization& dequantization)
    : dtype_(dtype),
      b_dtype_(b_dtype),
      a_(a),
      b_(b),
      packed_b_(static_cast<const char*>(packed_b)),
      c_(c),
      epilogue_(epilogue),
      dequantization_(dequantization),
      stored_b_(stored_b),
      quantized_bits_(dequantization.scale ? BitsOf(b_dtype) : 0),
      format_(quantized_bits_ ? ExpandedFormat(dtype) : FormatOf(stored_b)),
      kernel_(SelectProductKernel(dtype, format_, a.rows)),
      multiplied_format_(MultipliedFormat(kernel_, format_)),
      blocking_(ChooseBlocking(kernel_, multiplied_format_,
                               quantized_bits_ || multiplied_format_ != format_ ? RightSide::kExpanded
                               : packed_b                                       ? RightSide::kPacked
                                                                                : RightSide::kPackedOnTheFly,
                               a.rows, b.columns, a.columns, NumThreads())),
      upcast_(multiplied_format_ == PanelFormat::kFloat16 && blocking_.slivers >= kUpcastSlivers),
      multiplies_stored_(quantized_bits_ && packed_b && kernel_.sliver_format == SliverFormat::kHalves &&
                         PanelExpander::Multiplies(dtype, quantized_bits_, dequantization, a.rows, a.columns)),
      tile_kernel_(upcast_ ? *FloatKernel(PanelFormat::kFloat32) : kernel_),
      uses_tiles_(kernel_.uses_tiles() && !multiplies_stored_) {}

void Product::Run() {
  if (format_ == PanelFormat::kQuads) {
    integers_ = {.a_shift = SliverShift(kernel_.sliver_format, dtype_),
                 .b_shift = StoredShift(b_dtype_),
                 .depth = a_.columns,
                 .row_sums = SumsOfRows()};
  }
  to_rows_.emplace(c_, uses_tiles_ ? a_.rows * b_.columns : 0, epilogue_, integers());
  if (uses_tiles_ && PacksOwnSlivers()) own_product_ = ++last_product;
  PackPanelsForAll();
  for (int64_t s = 0; s < blocking_.slivers; s += blocking_.packed_slivers) {
    const int64_t stop = std::min(blocking_.slivers, s + blocking_.packed_slivers);
    if (own_product_ == 0) PackSlivers(s, stop);
    RunSlivers(s, stop);
  }
}

void Product::RunSlivers(int64_t sliver_begin, int64_t sliver_end) {
  const int64_t panels = PanelCount(b_.columns);
  const int64_t slivers = sliver_end - sliver_begin;
  const int64_t parts = std::min(blocking_.row_parts, slivers);
  if (parts == 1) {
    ParallelFor(panels, blocking_.panel_grain,
                [=, this](int64_t begin, int64_t end) { RunPart(sliver_begin, sliver_end, begin, end); });
    return;
  }
  // Few panels: the work units are (part of the rows, panel), rows outermost.
  ParallelFor(parts * panels, std::min(blocking_.panel_grain, panels), [=, this](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end;) {
      const int64_t part = unit / panels;
      const int64_t stop = std::min(end, (part + 1) * panels);
      RunPart(sliver_begin + slivers * part / parts, sliver_begin + slivers * (part + 1) / parts, unit - part * panels,
              stop - part * panels);
      unit = stop;
    }
  });
}

void Product::RunPart(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end) {
  ScopedTiles tiles(kernel_, blocking_.slivers == 1 ? a_.rows : kMaxSliverRows);
  for (int64_t s = sliver_begin; s < sliver_end; s += blocking_.block_slivers) {
    const int64_t stop = std::min(sliver_end, s + blocking_.block_slivers);
    for (int64_t p = panel_begin; p < panel_end; p += blocking_.group_panels) {
      const int64_t end = std::min(panel_end, p + blocking_.group_panels);
      if (!uses_tiles_) {
        if (const int64_t together = stop - s > 1 ? PanelsTogether() : 1; together > 1) {
          for (int64_t q = p; q < end; q += together) RunPanelsTogether(s, stop, q, std::min(end, q + together));
        } else {
          RunBlock(s, stop, p, end);
        }
        continue;
      }
      // After its range the thread that launched goes on with the panel behind it, if its rows are the same. Others
      // claim ranges from the last one back: that panel is theirs already, and prefetching it costs nothing.
      const int64_t next = end < panel_end || stop == sliver_end ? end : panel_begin;
      RunAmxBlock(s, stop, p, end, next);
    }
  }
}

int64_t Product::PanelsTogether() const {
  const bool as_packed = !packed_b_ && multiplied_format_ == format_ && !upcast_ && !quantized_bits_ && !integers_;
  return as_packed && blocking_.depth_blocks == 1 ? kTogetherBytes / PanelBytes(format_, a_.columns) : 1;
}

void Product::PackPanelsForAll() {
  const int64_t panel_bytes = PanelBytes(format_, a_.columns), panels = PanelCount(b_.columns);
  if (packed_b_ || quantized_bits_ || blocking_.row_parts == 1 || panels * panel_bytes > kMostPackedAtOnce) return;
  char* packed = static_cast<char*>(ProductScratch::OfThisThread().b.Reserve(panels * panel_bytes));
  Pack(b_dtype_, b_, packed, stored_b_);
  packed_b_ = packed;
}

void Product::RunPanelsTogether(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end) {
  ProductScratch& scratch = ProductScratch::OfThisThread();
  const int64_t depth = a_.columns, panel_bytes = PanelBytes(format_, depth);
  char* panels = static_cast<char*>(scratch.b.Reserve((panel_end - panel_begin) * panel_bytes));
  for (int64_t p = panel_begin; p < panel_end; ++p)
    PackPanel(format_, b_dtype_, b_, p, 0, depth, panels + (p - panel_begin) * panel_bytes);
  const int64_t tile_elements = blocking_.sliver_rows * kPanelColumns;
  float* sums = static_cast<float*>(scratch.sums.Reserve(2 * tile_elements * static_cast<int64_t>(sizeof(float))));
  float* tile = sums;
  Tile finished;
  for (int64_t s = sliver_begin; s < sliver_end; ++s) {
    const int64_t m0 = s * blocking_.sliver_rows, rows = SliverRowsAt(s);
    const Sliver sliver = SliverAt(s, 0);
    const char* panel = panels;
    for (int64_t p = panel_begin; p < panel_end; ++p, panel += panel_bytes) {
      const int64_t n0 = p * kPanelColumns;
      Prefetch prefetch{p + 1 < panel_end ? panel + panel_bytes : panels, RowBytes(format_)};
      PrefetchResult(prefetch, m0, rows, n0);
      tile_kernel_.FunctionsFor(ColumnsAt(n0))[kernel_.StoredRows(rows)](sliver, panel, prefetch, depth, tile, false);
      Store(finished);
      finished = {tile, rows, ColumnsAt(n0), m0, n0, nullptr};
      tile = tile == sums ? sums + tile_elements : sums;
    }
  }
  Store(finished);
}

void Product::RunBlock(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end) {
  const int64_t slivers = sliver_end - sliver_begin;
  const int64_t tile_elements = blocking_.sliver_rows * kPanelColumns;
  const bool one_block = blocking_.depth_blocks == 1;
  const int64_t kept_tiles = one_block ? 2 : slivers * (panel_end - panel_begin);
  const int64_t tile_bytes = tile_elements * static_cast<int64_t>(sizeof(float));
  float* sums = static_cast<float*>(ProductScratch::OfThisThread().sums.Reserve(kept_tiles * tile_bytes));
  // A finished tile is stored after the next one is computed: its sums are read when they have left the store buffers.
  Tile finished;

  for (int64_t kb = 0; kb < blocking_.depth_blocks; ++kb) {
    const int64_t k0 = kb * blocking_.depth, depth = DepthOf(kb);
    const bool last = kb + 1 == blocking_.depth_blocks;
    float* tile = sums;
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const void* b = multiplies_stored_ ? StoredPanelOf(p, k0) : PanelOf(p, k0, depth);
      const TileFunction* functions = tile_kernel_.FunctionsFor(ColumnsAt(p * kPanelColumns));
      const int32_t* column_sums = integers_ ? ColumnSums(p, p - panel_begin, panel_end - panel_begin, kb) : nullptr;
      Prefetch prefetch = FirstPrefetch(b, p + 1 < panel_end ? p + 1 : p, slivers, k0);
      for (int64_t s = sliver_begin; s < sliver_end; ++s) {
        const int64_t m0 = s * blocking_.sliver_rows, rows = SliverRowsAt(s);
        if (last) PrefetchResult(prefetch, m0, rows, p * kPanelColumns);
        if (multiplies_stored_) {
          if (kb == 0) std::fill_n(tile, rows * kPanelColumns, 0.0f);
          MultiplyStored(SliverAt(s, kb), rows, b, p, k0, depth, tile);
        } else {
          functions[kernel_.StoredRows(rows)](SliverAt(s, kb), b, prefetch, depth, tile, kb > 0);
        }
        prefetch.data += depth / RowDepth(multiplied_format_) * prefetch.step;

        if (last) {
          Store(finished);
          const int64_t n0 = p * kPanelColumns;
          finished = {tile, rows, ColumnsAt(n0), m0, n0, column_sums};
        }
        tile = one_block && tile != sums ? sums : tile + tile_elements;
      }
    }
  }
  Store(finished);
}

// The column sums of panel `panel` over the blocks of K up to `kb`. A packed panel contains those of all of K; for
// panels packed block by block they are accumulated, for the `group` of panels that are computed in turn.
const int32_t* Product::ColumnSums(int64_t panel, int64_t in_group, int64_t group, int64_t kb) {
  if (packed_b_) return reinterpret_cast<const int32_t*>(packed_b_ + panel * PanelBytes(format_, a_.columns));
  constexpr int64_t kBytes = kPanelColumns * 4;
  ProductScratch& scratch = ProductScratch::OfThisThread();
  uint32_t* kept = static_cast<uint32_t*>(scratch.column_sums.Reserve(group * kBytes)) + in_group * kPanelColumns;
  const uint32_t* of_block = static_cast<const uint32_t*>(scratch.b.Reserve(0));
  for (int64_t j = 0; j < kPanelColumns; ++j) kept[j] = (kb == 0 ? 0 : kept[j]) + of_block[j];
  return reinterpret_cast<const int32_t*>(kept);
}

// The row sums of A, which are multiplied by B's zero points; null if B has none.
const int32_t* Product::SumsOfRows() const {
  const IntegerTerms& terms = epilogue_.integers;
  if (StoredShift(b_dtype_) == 0 && !terms.b_zero_point.data && !terms.b_float_zero_point.data) return nullptr;
  AlignedBuffer& buffer = ProductScratch::OfThisThread().row_sums;
  int32_t* sums = static_cast<int32_t*>(buffer.Reserve(a_.rows * static_cast<int64_t>(sizeof(int32_t))));
  ParallelFor(a_.rows, std::max<int64_t>(1, kPackGrainBytes / a_.columns),
              [&](int64_t begin, int64_t end) { SumRows(dtype_, a_, begin, end - begin, sums + begin); });
  return sums;
}

// True if rows of A can be read in place: they have the kernel's element type and a size that it supports.
bool Product::InPlace(int64_t s, int64_t depth) const {
  if (a_.column_stride != 1 || !HoldsAsIs(kernel_.sliver_format, dtype_)) return false;
  const int64_t rows = SliverRowsAt(s);
  if (rows != ReadRows(s) || depth % kernel_.depth_multiple != 0) return false;
  // Rows a multiple of a page apart map to the same set of the L1 cache. Tile registers, which read rows past it, do
  // not mind a few.
  constexpr int64_t kPageBytes = 4096, kTileRowsInSet = 8;
  return rows <= (uses_tiles_ ? kTileRowsInSet : 1) ||
         a_.row_stride * ElementBytes(kernel_.sliver_format) % kPageBytes != 0;
}

Product::SliverRun Product::PackedSlivers(const char* data, int64_t s) const {
  const int64_t rows = kernel_.StoredRows(SliverRowsAt(s));
  return {Sliver::Packed(data, rows), PackedSliverBytes(), rows * ElementBytes(kernel_.sliver_format)};
}

Product::SliverRun Product::SliversFrom(int64_t s, int64_t kb) const {
  if (!InPlace(s, DepthOf(kb))) return PackedSlivers(PackedSliver(s, kb), s);
  const int64_t element = ElementBytes(kernel_.sliver_format);
  const int64_t row_bytes = a_.row_stride * element, sliver_bytes = blocking_.sliver_rows * row_bytes;
  const char* data = static_cast<const char*>(a_.data) + s * sliver_bytes + kb * blocking_.depth * element;
  return {{data, row_bytes, kChunkBytes}, sliver_bytes, element};
}

void Product::PackSliverTo(int64_t s, int64_t kb, char* out) const {
  const int64_t rows = SliverRowsAt(s);
  PackSliver(kernel_.sliver_format, dtype_, a_, s * blocking_.sliver_rows, rows, kernel_.StoredRows(rows),
             kb * blocking_.depth, DepthOf(kb), out);
}

// Packs the slivers that are not read in place, for all threads and panels.
void Product::PackSlivers(int64_t sliver_begin, int64_t sliver_end) {
  const int64_t blocks = blocking_.depth_blocks;
  const auto in_place = [&](int64_t s) { return InPlace(s, DepthOf(0)) && InPlace(s, DepthOf(blocks - 1)); };
  // Only the last sliver may have a different number of rows.
  const bool all = !in_place(sliver_begin), last = !in_place(sliver_end - 1);
  if (!all && !last) return;
  packed_begin_ = all ? sliver_begin : sliver_end - 1;
  packed_end_ = sliver_end;
  const int64_t slivers = packed_end_ - packed_begin_;
  packed_a_ = static_cast<char*>(ProductScratch::OfThisThread().a.Reserve(blocks * slivers * PackedSliverBytes()));
  ParallelFor(blocks * slivers, std::max<int64_t>(1, kPackGrainBytes / PackedSliverBytes()),
              [&](int64_t begin, int64_t end) {
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t kb = unit / slivers, s = packed_begin_ + unit % slivers;
                  if (!InPlace(s, DepthOf(kb))) PackSliverTo(s, kb, PackedSliver(s, kb));
                }
              });
}

const void* Product::PanelOf(int64_t panel, int64_t k0, int64_t depth) {
  if (quantized_bits_) return ExpandedPanelOf(panel, k0, depth);
  const void* rows = PackedPanelOf(panel, k0, depth);
  AlignedBuffer& buffer = ProductScratch::OfThisThread().wide_b;
  if (multiplied_format_ == PanelFormat::kSplitFloat16) {
    void* split = buffer.Reserve(PanelBytes(multiplied_format_, depth));
    SplitPanel(rows, depth, split);
    return split;
  }
  if (multiplied_format_ == PanelFormat::kWords) {
    void* words = buffer.Reserve(PanelBytes(multiplied_format_, depth));
    WidenQuads(rows, depth, words);
    return words;
  }
  if (!upcast_) return rows;
  float* wide = static_cast<float*>(buffer.Reserve(PanelBytes(PanelFormat::kFloat32, depth)));
  ToFloat(static_cast<const Float16*>(rows), wide, depth * kPanelColumns);
  return wide;
}

const void* Product::PackedPanelOf(int64_t panel, int64_t k0, int64_t depth) {
  const int64_t header = HeaderBytes(format_);
  if (packed_b_) {
    return packed_b_ + panel * PanelBytes(format_, a_.columns) + header + k0 / RowDepth(format_) * RowBytes(format_);
  }
  char* out = static_cast<char*>(ProductScratch::OfThisThread().b.Reserve(PanelBytes(format_, depth)));
  PackPanel(format_, b_dtype_, b_, panel, k0, depth, out);
  return out + header;
}

const void* Product::StoredPanelOf(int64_t panel, int64_t k0) const {
  return packed_b_ + panel * QuantizedPanelBytes(quantized_bits_, a_.columns) +
         QuantizedPanelBytes(quantized_bits_, k0);
}

const void* Product::ExpandedPanelOf(int64_t panel, int64_t k0, int64_t depth) {
  ProductScratch& scratch = ProductScratch::OfThisThread();
  const void* stored = nullptr;
  if (packed_b_) {
    stored = StoredPanelOf(panel, k0);
  } else {
    void* out = scratch.b.Reserve(QuantizedPanelBytes(quantized_bits_, depth));
    PackQuantizedPanel(b_dtype_, b_, panel, k0, depth, out);
    stored = out;
  }
  void* expanded = scratch.wide_b.Reserve(PanelBytes(format_, depth));
  const int64_t n0 = panel * kPanelColumns;
  PanelExpander(dtype_, quantized_bits_, dequantization_).Expand(stored, n0, ColumnsAt(n0), k0, depth, expanded);
  return expanded;
}

void Product::MultiplyStored(const Sliver& sliver, int64_t rows, const void* stored, int64_t panel, int64_t k0,
                             int64_t depth, float* tile) const {
  const int64_t n0 = panel * kPanelColumns;
  PanelExpander(dtype_, quantized_bits_, dequantization_)
      .Multiply(sliver, rows, stored, n0, ColumnsAt(n0), k0, depth, tile);
}

// What the first of `passes` over panel `b` prefetches. A panel that is read once is prefetched while it is read;
// several passes prefetch the next one in as many parts, so that memory is never idle while the slivers are
// multiplied.
Prefetch Product::FirstPrefetch(const void* b, int64_t next_panel, int64_t passes, int64_t k0) {
  if (quantized_bits_) return {static_cast<const char*>(b), 0};  // the expansion prefetches
  // Of what is packed, for each row that the kernel reads.
  const int64_t row_bytes = RowBytes(format_) * RowDepth(multiplied_format_) / RowDepth(format_);
  if (!packed_b_ || (passes == 1 && !upcast_))
    return {static_cast<const char*>(b) + Prefetch::Distance(blocking_.sliver_rows), row_bytes};
  return {static_cast<const char*>(PackedPanelOf(next_panel, k0, 0)), (row_bytes + passes - 1) / passes};
}

void Product::PrefetchResult(Prefetch& prefetch, int64_t m0, int64_t rows, int64_t n0) const {
  const int64_t element = BitsOf(c_.dtype) / 8, columns_per_result = epilogue_.gated_columns > 0 ? 2 : 1;
  prefetch.result = static_cast<const char*>(c_.data) + (m0 * c_.row_stride + n0 / columns_per_result) * element;
  prefetch.result_stride = c_.row_stride * element;
  prefetch.result_end = kPanelColumns / columns_per_result * element - 1;
  prefetch.result_rows = rows;
}

}  // namespace npu::gemm
