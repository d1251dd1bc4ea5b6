#include "ep/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/blocking.h"
#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/gemm/quantized.h"
#include "ep/kernels/gemm/rounded.h"

namespace npu::gemm {

namespace {

struct ThreadScratch {
  AlignedBuffer a, b, wide_b, sums, column_sums, row_sums;
};
thread_local ThreadScratch scratch;

constexpr int64_t kWidenSlivers = 3;
// Packing less than this of A costs more in waking a thread than it saves.
constexpr int64_t kPackGrainBytes = 32 << 10;

// One GEMM: the state that its parts share.
class Product {
 public:
  Product(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, DType stored_b,
          const Result& c, const Epilogue& epilogue, const Dequantization& dequantization)
      : dtype_(dtype),
        b_dtype_(b_dtype),
        a_(a),
        b_(b),
        packed_b_(static_cast<const char*>(packed_b)),
        c_(c),
        epilogue_(epilogue),
        dequantization_(dequantization),
        quantized_bits_(dequantization.scale ? BitsOf(b_dtype) : 0),
        format_(quantized_bits_ ? ExpandedFormat(dtype) : FormatOf(stored_b)),
        kernel_(SelectKernel(dtype, format_, a.rows)),
        blocking_(ChooseBlocking(kernel_, format_,
                                 quantized_bits_ ? RightSide::kQuantized
                                 : packed_b      ? RightSide::kPacked
                                                 : RightSide::kPackedOnTheFly,
                                 a.rows, b.columns, a.columns, NumThreads())),
        widen_(format_ == PanelFormat::kFloat16 && blocking_.slivers >= kWidenSlivers),
        multiplies_stored_(quantized_bits_ && packed_b && kernel_.sliver_format == SliverFormat::kHalves &&
                           PanelExpander::Multiplies(dtype, quantized_bits_, dequantization, a.rows, a.columns)),
        tile_kernel_(widen_ ? *FloatKernel(PanelFormat::kFloat32) : kernel_) {}

  void Run() {
    if (format_ == PanelFormat::kQuads) {
      integers_ = {.a_shift = SliverShift(kernel_.sliver_format, dtype_),
                   .b_shift = StoredShift(b_dtype_),
                   .depth = a_.columns,
                   .row_sums = SumsOfRows()};
    }
    for (int64_t s = 0; s < blocking_.slivers; s += blocking_.packed_slivers) {
      const int64_t stop = std::min(blocking_.slivers, s + blocking_.packed_slivers);
      PackSlivers(s, stop);
      RunSlivers(s, stop);
    }
  }

 private:
  void RunSlivers(int64_t sliver_begin, int64_t sliver_end) {
    const int64_t panels = PanelCount(b_.columns);
    const int64_t slivers = sliver_end - sliver_begin;
    const int64_t parts = std::min(blocking_.row_parts, slivers);
    if (parts == 1) {
      ParallelFor(panels, blocking_.panel_grain,
                  [=, this](int64_t begin, int64_t end) { RunPart(sliver_begin, sliver_end, begin, end); });
      return;
    }
    // Few panels: the work units are (part of the rows, panel), rows outermost.
    ParallelFor(parts * panels, 1, [=, this](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end;) {
        const int64_t part = unit / panels;
        const int64_t stop = std::min(end, (part + 1) * panels);
        RunPart(sliver_begin + slivers * part / parts, sliver_begin + slivers * (part + 1) / parts,
                unit - part * panels, stop - part * panels);
        unit = stop;
      }
    });
  }

  void RunPart(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end) {
    ScopedTiles tiles(kernel_);
    for (int64_t s = sliver_begin; s < sliver_end; s += blocking_.block_slivers) {
      const int64_t stop = std::min(sliver_end, s + blocking_.block_slivers);
      for (int64_t p = panel_begin; p < panel_end; p += blocking_.group_panels)
        RunBlock(s, stop, p, std::min(panel_end, p + blocking_.group_panels));
    }
  }

  // A block of slivers times a group of panels, over all of K.
  void RunBlock(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end) {
    const int64_t slivers = sliver_end - sliver_begin;
    const int64_t tile_elements = blocking_.sliver_rows * kPanelColumns;
    const bool one_block = blocking_.depth_blocks == 1;
    const int64_t kept_tiles = one_block ? 2 : slivers * (panel_end - panel_begin);
    const int64_t tile_bytes = tile_elements * static_cast<int64_t>(sizeof(float));
    float* sums = static_cast<float*>(scratch.sums.Reserve(kept_tiles * tile_bytes));
    // A finished tile is stored after the next one is computed: what tile registers have just stored cannot be loaded
    // immediately, and the vector unit has work while the tiles multiply.
    Tile finished;

    for (int64_t kb = 0; kb < blocking_.depth_blocks; ++kb) {
      const int64_t k0 = kb * blocking_.depth, depth = DepthOf(kb);
      const bool last = kb + 1 == blocking_.depth_blocks;
      float* tile = sums;
      for (int64_t p = panel_begin; p < panel_end; ++p) {
        const void* b = multiplies_stored_ ? StoredPanelOf(p, k0) : PanelOf(p, k0, depth);
        const int32_t* column_sums = integers_ ? ColumnSums(p, p - panel_begin, panel_end - panel_begin, kb) : nullptr;
        Prefetch prefetch = FirstPrefetch(b, p + 1 < panel_end ? p + 1 : p, slivers, k0);
        for (int64_t s = sliver_begin; s < sliver_end; ++s) {
          const int64_t m0 = s * blocking_.sliver_rows, rows = SliverRowsAt(s);
          if (last) AskForResult(prefetch, m0, rows, p * kPanelColumns);
          if (multiplies_stored_) {
            if (kb == 0) std::fill_n(tile, rows * kPanelColumns, 0.0f);
            MultiplyStored(SliverAt(s, kb), rows, b, p, k0, depth, tile);
          } else {
            tile_kernel_.functions[kernel_.StoredRows(rows)](SliverAt(s, kb), b, prefetch, depth, tile, kb > 0);
          }
          prefetch.data += depth / RowDepth(format_) * prefetch.step;

          if (last) {
            Store(finished);
            const int64_t n0 = p * kPanelColumns;
            finished = {tile, rows, std::min<int64_t>(kPanelColumns, b_.columns - n0), m0, n0, column_sums};
          }
          tile = one_block && tile != sums ? sums : tile + tile_elements;
        }
      }
    }
    Store(finished);
  }

  void Store(const Tile& tile) const {
    if (tile.sums) StoreTile(tile, c_, epilogue_, integers_ ? &*integers_ : nullptr);
  }

  // The column sums of panel `panel` over the blocks of K up to `kb`. A packed panel contains those of all of K; for
  // panels packed block by block they are accumulated, for the `group` of panels that are computed in turn.
  const int32_t* ColumnSums(int64_t panel, int64_t in_group, int64_t group, int64_t kb) {
    if (packed_b_) return reinterpret_cast<const int32_t*>(packed_b_ + panel * PanelBytes(format_, a_.columns));
    constexpr int64_t kBytes = kPanelColumns * 4;
    uint32_t* kept = static_cast<uint32_t*>(scratch.column_sums.Reserve(group * kBytes)) + in_group * kPanelColumns;
    const uint32_t* of_block = static_cast<const uint32_t*>(scratch.b.Reserve(0));
    for (int64_t j = 0; j < kPanelColumns; ++j) kept[j] = (kb == 0 ? 0 : kept[j]) + of_block[j];
    return reinterpret_cast<const int32_t*>(kept);
  }

  // The row sums of A, which are multiplied by B's zero points; null if B has none.
  const int32_t* SumsOfRows() const {
    const IntegerTerms& terms = epilogue_.integers;
    if (StoredShift(b_dtype_) == 0 && !terms.b_zero_point.data && !terms.b_float_zero_point.data) return nullptr;
    int32_t* sums = static_cast<int32_t*>(scratch.row_sums.Reserve(a_.rows * static_cast<int64_t>(sizeof(int32_t))));
    ParallelFor(a_.rows, std::max<int64_t>(1, kPackGrainBytes / a_.columns),
                [&](int64_t begin, int64_t end) { SumRows(dtype_, a_, begin, end - begin, sums + begin); });
    return sums;
  }

  int64_t DepthOf(int64_t kb) const { return std::min(blocking_.depth, a_.columns - kb * blocking_.depth); }
  int64_t SliverRowsAt(int64_t s) const { return std::min(blocking_.sliver_rows, a_.rows - s * blocking_.sliver_rows); }

  // True if rows of A can be read in place: they have the kernel's element type and a size that it supports.
  bool InPlace(int64_t s, int64_t depth) const {
    if (a_.column_stride != 1 || !HoldsAsIs(kernel_.sliver_format, dtype_)) return false;
    const int64_t rows = SliverRowsAt(s);
    if (rows % kernel_.row_multiple != 0 || depth % kernel_.depth_multiple != 0) return false;
    // Rows a multiple of a page apart map to the same set of the L1 cache.
    constexpr int64_t kPageBytes = 4096;
    return rows == 1 || a_.row_stride * ElementBytes(kernel_.sliver_format) % kPageBytes != 0;
  }

  Sliver SliverAt(int64_t s, int64_t kb) const {
    if (!InPlace(s, DepthOf(kb))) return Sliver::Packed(PackedSliver(s, kb), kernel_.StoredRows(SliverRowsAt(s)));
    const int64_t element = ElementBytes(kernel_.sliver_format);
    const int64_t offset = s * blocking_.sliver_rows * a_.row_stride + kb * blocking_.depth;
    return {static_cast<const char*>(a_.data) + offset * element, a_.row_stride * element, kChunkBytes};
  }

  int64_t PackedSliverBytes() const {
    return SliverBytes(kernel_.sliver_format, blocking_.sliver_rows, blocking_.depth);
  }
  char* PackedSliver(int64_t s, int64_t kb) const {
    return packed_a_ + (kb * (packed_end_ - packed_begin_) + s - packed_begin_) * PackedSliverBytes();
  }

  // Packs the slivers that are not read in place, for all threads and panels.
  void PackSlivers(int64_t sliver_begin, int64_t sliver_end) {
    const int64_t blocks = blocking_.depth_blocks;
    const auto in_place = [&](int64_t s) { return InPlace(s, DepthOf(0)) && InPlace(s, DepthOf(blocks - 1)); };
    // Only the last sliver may have a different number of rows.
    const bool all = !in_place(sliver_begin), last = !in_place(sliver_end - 1);
    if (!all && !last) return;
    packed_begin_ = all ? sliver_begin : sliver_end - 1;
    packed_end_ = sliver_end;
    const int64_t slivers = packed_end_ - packed_begin_;
    packed_a_ = static_cast<char*>(scratch.a.Reserve(blocks * slivers * PackedSliverBytes()));
    ParallelFor(blocks * slivers, std::max<int64_t>(1, kPackGrainBytes / PackedSliverBytes()),
                [&](int64_t begin, int64_t end) {
                  for (int64_t unit = begin; unit < end; ++unit) {
                    const int64_t kb = unit / slivers, s = packed_begin_ + unit % slivers;
                    if (InPlace(s, DepthOf(kb))) continue;
                    const int64_t rows = SliverRowsAt(s);
                    PackSliver(kernel_.sliver_format, dtype_, a_, s * blocking_.sliver_rows, rows,
                               kernel_.StoredRows(rows), kb * blocking_.depth, DepthOf(kb), PackedSliver(s, kb));
                  }
                });
  }

  const void* PanelOf(int64_t panel, int64_t k0, int64_t depth) {
    if (quantized_bits_) return ExpandedPanelOf(panel, k0, depth);
    const void* rows = PackedPanelOf(panel, k0, depth);
    if (!widen_) return rows;
    float* wide = static_cast<float*>(scratch.wide_b.Reserve(PanelBytes(PanelFormat::kFloat32, depth)));
    ToFloat(static_cast<const Float16*>(rows), wide, depth * kPanelColumns);
    return wide;
  }

  const void* StoredPanelOf(int64_t panel, int64_t k0) const {
    return packed_b_ + panel * QuantizedPanelBytes(quantized_bits_, a_.columns) +
           QuantizedPanelBytes(quantized_bits_, k0);
  }

  int64_t ColumnsAt(int64_t n0) const { return std::min<int64_t>(kPanelColumns, b_.columns - n0); }

  void MultiplyStored(const Sliver& sliver, int64_t rows, const void* stored, int64_t panel, int64_t k0, int64_t depth,
                      float* tile) const {
    const int64_t n0 = panel * kPanelColumns;
    PanelExpander(dtype_, quantized_bits_, dequantization_)
        .Multiply(sliver, rows, stored, n0, ColumnsAt(n0), k0, depth, tile);
  }

  const void* ExpandedPanelOf(int64_t panel, int64_t k0, int64_t depth) {
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

  // What the first of `passes` over panel `b` prefetches. A panel that is read once is prefetched while it is read;
  // several passes prefetch the next one in as many parts, so that memory is never idle while the slivers are
  // multiplied.
  Prefetch FirstPrefetch(const void* b, int64_t next_panel, int64_t passes, int64_t k0) {
    if (quantized_bits_) return {static_cast<const char*>(b), 0};  // the expansion prefetches
    const int64_t row_bytes = RowBytes(format_);
    if (!packed_b_ || (passes == 1 && !widen_))
      return {static_cast<const char*>(b) + Prefetch::Distance(blocking_.sliver_rows), row_bytes};
    return {static_cast<const char*>(PackedPanelOf(next_panel, k0, 0)), (row_bytes + passes - 1) / passes};
  }

  void AskForResult(Prefetch& prefetch, int64_t m0, int64_t rows, int64_t n0) const {
    const int64_t element = BitsOf(c_.dtype) / 8;
    prefetch.result = static_cast<const char*>(c_.data) + (m0 * c_.row_stride + n0) * element;
    prefetch.result_stride = c_.row_stride * element;
    prefetch.result_end = kPanelColumns * element - 1;
    prefetch.result_rows = rows;
  }

  const void* PackedPanelOf(int64_t panel, int64_t k0, int64_t depth) {
    const int64_t header = HeaderBytes(format_);
    if (packed_b_) {
      return packed_b_ + panel * PanelBytes(format_, a_.columns) + header + k0 / RowDepth(format_) * RowBytes(format_);
    }
    char* out = static_cast<char*>(scratch.b.Reserve(PanelBytes(format_, depth)));
    PackPanel(format_, b_dtype_, b_, panel, k0, depth, out);
    return out + header;
  }

  DType dtype_, b_dtype_;
  Matrix a_, b_;  // if B is packed, only its sizes are used
  const char* packed_b_;
  Result c_;
  Epilogue epilogue_;
  Dequantization dequantization_;
  int quantized_bits_;  // of the elements of a B of integers, when A has floats; else 0
  PanelFormat format_;
  const MicroKernel& kernel_;
  Blocking blocking_;
  // Slivers [packed_begin_, packed_end_) of A as packed: blocks of K outermost.
  char* packed_a_ = nullptr;
  int64_t packed_begin_ = 0, packed_end_ = 0;
  std::optional<StoredIntegers> integers_;
  // float16 panels that are used by many slivers are upcast to float once, not once per sliver.
  bool widen_;
  bool multiplies_stored_;  // a packed quantised B, without expanding its panels
  const MicroKernel& tile_kernel_;
};

// An empty sum: C is the addend, or zero.
void StoreEmptySum(const Result& c, int64_t m, int64_t n, const Epilogue& epilogue, bool integers) {
  const int32_t no_sums[kPanelColumns] = {};
  const StoredIntegers stored;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      float zeros[kPanelColumns] = {};
      const Tile tile{zeros, 1, std::min<int64_t>(kPanelColumns, n - j), i, j, no_sums};
      StoreTile(tile, c, epilogue, integers ? &stored : nullptr);
    }
  }
}

constexpr DTypeSet kQuantized{DType::kInt8, DType::kInt4};

void Check(DType dtype, const Matrix& a, DType b_dtype, int64_t b_rows, const Dequantization& dequantization) {
  const bool fit = dequantization.scale
                       ? (Supports(dtype) || kQuantized.Contains(dtype)) && kQuantized.Contains(b_dtype)
                   : Supports(dtype) ? b_dtype == dtype
                                     : kIntegerOperands.Contains(dtype) && kIntegerOperands.Contains(b_dtype);
  NPU_CHECK(fit, "[gemm] expected two matrices of float32, float16 or bfloat16, or of 8- or 4-bit integers, got ",
            NameOf(dtype), " and ", NameOf(b_dtype));
  NPU_CHECK(a.columns == b_rows, "[gemm] expected as many columns of A as rows of B, got ", a.columns, " and ", b_rows);
}

void MultiplyAny(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, DType stored_b,
                 const Result& c, const Epilogue& epilogue, const Dequantization& dequantization) {
  Check(dtype, a, b_dtype, b.rows, dequantization);
  if (a.rows == 0 || b.columns == 0) return;
  const bool integers = kIntegerOperands.Contains(dtype);
  if (a.columns == 0) return StoreEmptySum(c, a.rows, b.columns, epilogue, integers && !dequantization.scale);
  if (MultipliesIntegers(dtype, dequantization))
    return MultiplyRounded(dtype, a, b_dtype, b, packed_b, c, epilogue, dequantization);
  Product(dtype, a, b_dtype, b, packed_b, stored_b, c, epilogue, dequantization).Run();
}

// What a B of `dtype` is stored as when nothing is rounded.
DType StoredAs(DType dtype) { return dtype == DType::kInt4 ? DType::kInt8 : dtype; }

}  // namespace

namespace {

// If this does not overflow, no size below does.
void CheckExtent(int64_t k, int64_t n) {
  constexpr int64_t kMost = int64_t{1} << 56;
  NPU_CHECK(n == 0 || k <= kMost / (n + kPanelColumns), "[gemm] expected a matrix that fits memory, got [", k, ", ", n,
            "]");
}

constexpr int64_t kPackGrain = 128 << 10;  // bytes of panels that are worth another thread

// Calls pack(panel, its destination) for all panels of n columns, on the pool.
template <class F>
void PackPanels(int64_t n, int64_t panel_bytes, void* packed, const F& pack) {
  ParallelFor(PanelCount(n), std::max<int64_t>(1, kPackGrain / std::max<int64_t>(1, panel_bytes)),
              [&](int64_t begin, int64_t end) {
                for (int64_t p = begin; p < end; ++p) pack(p, static_cast<char*>(packed) + p * panel_bytes);
              });
}

}  // namespace

size_t PackedBytes(DType stored, int64_t k, int64_t n) {
  NPU_CHECK((Supports(stored) || stored == DType::kInt8 || stored == DType::kUInt8) && k >= 0 && n >= 0,
            "[gemm] expected a matrix of floats or 8-bit integers, got ", NameOf(stored), " [", k, ", ", n, "]");
  CheckExtent(k, n);
  return static_cast<size_t>(PanelCount(n) * PanelBytes(FormatOf(stored), k));
}

void Pack(DType dtype, const Matrix& b, void* packed, DType stored) {
  NPU_CHECK(stored == StoredAs(dtype) || (stored == DType::kBFloat16 && dtype == DType::kFloat32), "[gemm] expected ",
            NameOf(dtype), " stored as ", NameOf(StoredAs(dtype)), " or, if float32, rounded to bfloat16, got ",
            NameOf(stored));
  const PanelFormat format = FormatOf(stored);
  PackPanels(b.columns, PanelBytes(format, b.rows), packed,
             [&](int64_t panel, void* to) { PackPanel(format, dtype, b, panel, 0, b.rows, to); });
}

size_t QuantizedBytes(DType stored, int64_t k, int64_t n) {
  NPU_CHECK(kQuantized.Contains(stored) && k >= 0 && n >= 0, "[gemm] expected a matrix of int8 or int4, got ",
            NameOf(stored), " [", k, ", ", n, "]");
  CheckExtent(k, n);
  return static_cast<size_t>(PanelCount(n) * QuantizedPanelBytes(BitsOf(stored), k));
}

void PackQuantized(DType dtype, const Matrix& b, void* packed) {
  PackPanels(b.columns, QuantizedPanelBytes(BitsOf(dtype), b.rows), packed,
             [&](int64_t panel, void* to) { PackQuantizedPanel(dtype, b, panel, 0, b.rows, to); });
}

bool PacksInPlace(DType dtype, int64_t k, int64_t n) {
  return Supports(dtype) && n % kPanelColumns == 0 && PaddedDepth(FormatOf(dtype), k) == k;
}

void PackInPlace(DType dtype, void* rows, int64_t k, int64_t n) {
  const PanelFormat format = FormatOf(dtype);
  const int64_t panel_bytes = PanelBytes(format, k);
  const Matrix b = Matrix::RowMajor(rows, n, k).Transposed();
  ParallelFor(PanelCount(n), 1, [&](int64_t begin, int64_t end) {
    void* panel = scratch.b.Reserve(panel_bytes);
    for (int64_t p = begin; p < end; ++p) {
      PackPanel(format, dtype, b, p, 0, k, panel);
      std::memcpy(static_cast<char*>(rows) + p * panel_bytes, panel, static_cast<size_t>(panel_bytes));
    }
  });
}

void CopyColumn(const PackedMatrix& b, int64_t column, void* out) {
  const PanelFormat format = FormatOf(b.stored);
  const char* panel = static_cast<const char*>(b.data) + column / kPanelColumns * PanelBytes(format, b.rows);
  UnpackColumn(format, panel, column % kPanelColumns, b.rows, out);
}

void Multiply(const Matrix& a, const PackedMatrix& b, const Result& c, const Epilogue& epilogue) {
  const bool integers = kIntegerOperands.Contains(b.stored);
  MultiplyAny(b.dtype, a, integers ? b.stored : b.dtype, Matrix::RowMajor(nullptr, b.rows, b.columns), b.data, b.stored,
              c, epilogue, b.dequantization);
}

void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue) {
  MultiplyAny(dtype, a, dtype, b, nullptr, StoredAs(dtype), c, epilogue, {});
}

void Multiply(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const Result& c, const Epilogue& epilogue,
              const Dequantization& dequantization) {
  MultiplyAny(dtype, a, b_dtype, b, nullptr, StoredAs(b_dtype), c, epilogue, dequantization);
}

}  // namespace npu::gemm
