#include "ep/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "ep/kernels/gemm/blocking.h"
#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/packing.h"

namespace npu::gemm {

namespace {

// Grows and is reused: a thread computes many GEMMs.
class AlignedBuffer {
 public:
  void* Reserve(int64_t bytes) {
    if (bytes > size_) {
      // Rounded up to whole cache lines, as aligned_alloc requires.
      const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
      size_ = 0;
      memory_.reset(std::aligned_alloc(64, rounded));
      if (!memory_) throw std::bad_alloc();
      size_ = static_cast<int64_t>(rounded);
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

struct ThreadScratch {
  AlignedBuffer a, b, wide_b, sums;
};
thread_local ThreadScratch scratch;

constexpr int64_t kWidenSlivers = 3;
// Packing less than this of A costs more in waking a thread than it saves.
constexpr int64_t kPackGrainBytes = 32 << 10;

// One GEMM: the state that its parts share.
class Product {
 public:
  Product(DType dtype, const Matrix& a, const Matrix& b, const void* packed_b, DType stored_b, const Result& c,
          const Epilogue& epilogue)
      : dtype_(dtype),
        a_(a),
        b_(b),
        packed_b_(static_cast<const char*>(packed_b)),
        c_(c),
        epilogue_(epilogue),
        format_(FormatOf(stored_b)),
        kernel_(SelectKernel(format_, a.rows)),
        blocking_(ChooseBlocking(kernel_, format_, packed_b != nullptr, a.rows, b.columns, a.columns, NumThreads())),
        widen_(format_ == PanelFormat::kFloat16 && blocking_.slivers >= kWidenSlivers),
        tile_kernel_(widen_ ? *FloatKernel(PanelFormat::kFloat32) : kernel_) {}

  void Run() {
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
    FinishedTile finished;

    for (int64_t kb = 0; kb < blocking_.depth_blocks; ++kb) {
      const int64_t k0 = kb * blocking_.depth, depth = DepthOf(kb);
      const bool last = kb + 1 == blocking_.depth_blocks;
      float* tile = sums;
      for (int64_t p = panel_begin; p < panel_end; ++p) {
        const void* b = PanelOf(p, k0, depth);
        Prefetch prefetch = FirstPrefetch(b, p + 1 < panel_end ? p + 1 : p, slivers, k0);
        for (int64_t s = sliver_begin; s < sliver_end; ++s) {
          const int64_t m0 = s * blocking_.sliver_rows, rows = SliverRowsAt(s);
          if (last) AskForResult(prefetch, m0, rows, p * kPanelColumns);
          tile_kernel_.functions[kernel_.StoredRows(rows)](SliverAt(s, kb), b, prefetch, depth, tile, kb > 0);
          prefetch.data += depth / RowDepth(format_) * prefetch.step;

          if (last) {
            Store(finished);
            finished = {tile, rows, m0, p * kPanelColumns};
          }
          tile = one_block && tile != sums ? sums : tile + tile_elements;
        }
      }
    }
    Store(finished);
  }

  struct FinishedTile {
    float* sums = nullptr;
    int64_t rows = 0, m0 = 0, n0 = 0;
  };

  void Store(const FinishedTile& tile) const {
    if (tile.sums == nullptr) return;
    const int64_t columns = std::min<int64_t>(kPanelColumns, b_.columns - tile.n0);
    StoreTile(tile.sums, tile.rows, columns, tile.m0, tile.n0, c_, epilogue_);
  }

  int64_t DepthOf(int64_t kb) const { return std::min(blocking_.depth, a_.columns - kb * blocking_.depth); }
  int64_t SliverRowsAt(int64_t s) const { return std::min(blocking_.sliver_rows, a_.rows - s * blocking_.sliver_rows); }

  // True if rows of A can be read in place: they have the kernel's element type and a size that it supports.
  bool InPlace(int64_t s, int64_t depth) const {
    if (a_.column_stride != 1 || (kernel_.sliver_format == SliverFormat::kFloat32) != (dtype_ == DType::kFloat32))
      return false;
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
    const void* rows = PackedPanelOf(panel, k0, depth);
    if (!widen_) return rows;
    float* wide = static_cast<float*>(scratch.wide_b.Reserve(PanelBytes(PanelFormat::kFloat32, depth)));
    ToFloat(static_cast<const Float16*>(rows), wide, depth * kPanelColumns);
    return wide;
  }

  // What the first of `passes` over panel `b` prefetches. A panel that is read once is prefetched while it is read;
  // several passes prefetch the next one in as many parts, so that memory is never idle while the slivers are
  // multiplied.
  Prefetch FirstPrefetch(const void* b, int64_t next_panel, int64_t passes, int64_t k0) {
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
    if (packed_b_) {
      return packed_b_ + panel * PanelBytes(format_, a_.columns) + k0 / RowDepth(format_) * RowBytes(format_);
    }
    void* out = scratch.b.Reserve(PanelBytes(format_, depth));
    PackPanel(format_, dtype_, b_, panel, k0, depth, out);
    return out;
  }

  DType dtype_;
  Matrix a_, b_;  // if B is packed, only its sizes are used
  const char* packed_b_;
  Result c_;
  Epilogue epilogue_;
  PanelFormat format_;
  const MicroKernel& kernel_;
  Blocking blocking_;
  // Slivers [packed_begin_, packed_end_) of A as packed: blocks of K outermost.
  char* packed_a_ = nullptr;
  int64_t packed_begin_ = 0, packed_end_ = 0;
  // float16 panels that are used by many slivers are upcast to float once, not once per sliver.
  bool widen_;
  const MicroKernel& tile_kernel_;
};

// An empty sum: C is the addend, or zero.
void StoreEmptySum(const Result& c, int64_t m, int64_t n, const Epilogue& epilogue) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      float zeros[kPanelColumns] = {};
      StoreTile(zeros, 1, std::min<int64_t>(kPanelColumns, n - j), i, j, c, epilogue);
    }
  }
}

void Check(DType dtype, const Matrix& a, int64_t b_rows) {
  NPU_CHECK(Supports(dtype), "[gemm] expected float32, float16 or bfloat16, got ", NameOf(dtype));
  NPU_CHECK(a.columns == b_rows, "[gemm] expected as many columns of A as rows of B, got ", a.columns, " and ", b_rows);
}

void MultiplyAny(DType dtype, const Matrix& a, const Matrix& b, const void* packed_b, DType stored_b, const Result& c,
                 const Epilogue& epilogue) {
  Check(dtype, a, b.rows);
  if (a.rows == 0 || b.columns == 0) return;
  if (a.columns == 0) return StoreEmptySum(c, a.rows, b.columns, epilogue);
  Product(dtype, a, b, packed_b, stored_b, c, epilogue).Run();
}

}  // namespace

size_t PackedBytes(DType stored, int64_t k, int64_t n) {
  NPU_CHECK(Supports(stored) && k >= 0 && n >= 0, "[gemm] expected a matrix of floats, got ", NameOf(stored), " [", k,
            ", ", n, "]");
  // If this does not overflow, no size below does.
  constexpr int64_t kMost = int64_t{1} << 56;
  NPU_CHECK(n == 0 || k <= kMost / (n + kPanelColumns), "[gemm] expected a matrix that fits memory, got [", k, ", ", n,
            "]");
  return static_cast<size_t>(PanelCount(n) * PanelBytes(FormatOf(stored), k));
}

void Pack(DType dtype, const Matrix& b, void* packed, DType stored) {
  NPU_CHECK(stored == dtype || (stored == DType::kBFloat16 && dtype == DType::kFloat32), "[gemm] expected ",
            NameOf(dtype), " stored as it is or rounded to bfloat16, got ", NameOf(stored));
  const PanelFormat format = FormatOf(stored);
  const int64_t panel_bytes = PanelBytes(format, b.rows);
  constexpr int64_t kGrainBytes = 128 << 10;
  ParallelFor(PanelCount(b.columns), std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, panel_bytes)),
              [&](int64_t begin, int64_t end) {
                for (int64_t p = begin; p < end; ++p)
                  PackPanel(format, dtype, b, p, 0, b.rows, static_cast<char*>(packed) + p * panel_bytes);
              });
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
  MultiplyAny(b.dtype, a, Matrix::RowMajor(nullptr, b.rows, b.columns), b.data, b.stored, c, epilogue);
}

void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue) {
  MultiplyAny(dtype, a, b, nullptr, dtype, c, epilogue);
}

}  // namespace npu::gemm
