// One product of matrices: the state that its parts share, and the order in which they are computed.
//
//   product.cc      the operands, their packing, and the work of each thread with vector micro-kernels
//   product_amx.cc  the same work with tile registers
#pragma once

#include <optional>

#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/blocking.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/panel_streams.h"
#include "ep/kernels/gemm/row_epilogue.h"

namespace npu::gemm {

struct ProductScratch {
  AlignedBuffer a, b, wide_b, sums, column_sums, row_sums;
  // A block of A that this thread packed for itself, and of which product and part it is.
  AlignedBuffer own_a;
  uint64_t own_product = 0;
  int64_t own_sliver = 0, own_block = 0;

  static ProductScratch& OfThisThread();
};

class Product {
 public:
  // `packed_b` is B stored as `stored_b`, or null: then its panels are packed when they are multiplied. All sizes >= 1.
  Product(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, DType stored_b,
          const Result& c, const Epilogue& epilogue, const Dequantization& dequantization);
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void Run();

 private:
  // Slivers of equally many rows that lie one after the other.
  struct SliverRun {
    Sliver first;
    int64_t sliver_bytes = 0;  // from one to the next
    int64_t depth_bytes = 0;   // from one element of K to the next, at the beginning of chunks

    Sliver At(int64_t index, int64_t k) const {
      const char* data = static_cast<const char*>(first.data) + index * sliver_bytes + k * depth_bytes;
      return {data, first.row_stride, first.chunk_stride};
    }
  };

  // Slivers that take turns at each chunk of K: while they do, the chunk of B stays in the L1 cache.
  struct AmxTurns {
    int64_t depth = 0;  // of a chunk
    int64_t slivers = 1;
  };

  void RunSlivers(int64_t sliver_begin, int64_t sliver_end);
  void RunPart(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end);
  // A block of slivers times a group of panels, over all of K.
  void RunBlock(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end);
  // The same with panels that are packed before: each sliver is multiplied by all of them, so that rows of C are
  // written one after the other. Of a small K, whose sums are stored as fast as they are computed, that takes up to a
  // quarter less time.
  void RunPanelsTogether(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end);
  int64_t PanelsTogether() const;  // 1: they are not

  // With tile registers. This thread probably goes on with panel `next_panel`.
  void RunAmxBlock(int64_t sliver_begin, int64_t sliver_end, int64_t panel_begin, int64_t panel_end,
                   int64_t next_panel);
  AmxTurns TurnsOf(int64_t depth, int64_t slivers) const;
  PanelStreams StreamsFrom(const void* b, int64_t slivers, int64_t kb, int64_t next_panel, int64_t next_kb);
  bool PacksOwnSlivers() const;
  const char* PackOwnSlivers(int64_t sliver_begin, int64_t sliver_end, int64_t kb) const;

  void Store(const Tile& tile) const {
    if (tile.sums) to_rows_->Store(tile);
  }
  const StoredIntegers* integers() const { return integers_ ? &*integers_ : nullptr; }

  int64_t DepthOf(int64_t kb) const { return std::min(blocking_.depth, a_.columns - kb * blocking_.depth); }
  int64_t SliverRowsAt(int64_t s) const { return std::min(blocking_.sliver_rows, a_.rows - s * blocking_.sliver_rows); }
  int64_t ColumnsAt(int64_t n0) const { return std::min<int64_t>(kPanelColumns, b_.columns - n0); }

  // Of A that a micro-kernel reads for sliver s. Tile registers are configured for a single sliver as it is.
  int64_t ReadRows(int64_t s) const {
    return uses_tiles_ && blocking_.slivers == 1 ? a_.rows : kernel_.StoredRows(SliverRowsAt(s));
  }
  bool InPlace(int64_t s, int64_t depth) const;
  // Sliver s as packed at `data`, and those after it with as many rows.
  SliverRun PackedSlivers(const char* data, int64_t s) const;
  // Sliver s where it lies, in place or packed for all threads, and those after it.
  SliverRun SliversFrom(int64_t s, int64_t kb) const;
  Sliver SliverAt(int64_t s, int64_t kb) const { return SliversFrom(s, kb).first; }
  int64_t PackedSliverBytes() const {
    return SliverBytes(kernel_.sliver_format, blocking_.sliver_rows, blocking_.depth);
  }
  char* PackedSliver(int64_t s, int64_t kb) const {
    return packed_a_ + (kb * (packed_end_ - packed_begin_) + s - packed_begin_) * PackedSliverBytes();
  }
  void PackSliverTo(int64_t s, int64_t kb, char* out) const;
  void PackSlivers(int64_t sliver_begin, int64_t sliver_end);
  // A B that is packed on the fly, if threads divide the rows: each would pack all of it.
  void PackPanelsForAll();

  const void* PanelOf(int64_t panel, int64_t k0, int64_t depth);
  const void* PackedPanelOf(int64_t panel, int64_t k0, int64_t depth);
  const void* StoredPanelOf(int64_t panel, int64_t k0) const;
  const void* ExpandedPanelOf(int64_t panel, int64_t k0, int64_t depth);
  void MultiplyStored(const Sliver& sliver, int64_t rows, const void* stored, int64_t panel, int64_t k0, int64_t depth,
                      float* tile) const;
  const int32_t* ColumnSums(int64_t panel, int64_t in_group, int64_t group, int64_t kb);
  const int32_t* SumsOfRows() const;

  Prefetch FirstPrefetch(const void* b, int64_t next_panel, int64_t passes, int64_t k0);
  void PrefetchResult(Prefetch& prefetch, int64_t m0, int64_t rows, int64_t n0) const;

  DType dtype_, b_dtype_;
  Matrix a_, b_;  // if B is packed, only its sizes are used
  const char* packed_b_;
  Result c_;
  Epilogue epilogue_;
  Dequantization dequantization_;
  DType stored_b_;
  int quantized_bits_;  // of the elements of a B of integers, when A has floats; else 0
  PanelFormat format_;
  const MicroKernel& kernel_;
  PanelFormat multiplied_format_;  // of panels as the kernel reads them
  Blocking blocking_;
  // Slivers [packed_begin_, packed_end_) of A as packed: blocks of K outermost.
  char* packed_a_ = nullptr;
  int64_t packed_begin_ = 0, packed_end_ = 0;
  std::optional<StoredIntegers> integers_;
  // float16 panels that are used by many slivers are upcast to float once, not once per sliver.
  bool upcast_;
  bool multiplies_stored_;  // a packed quantised B, without expanding its panels
  const MicroKernel& tile_kernel_;
  bool uses_tiles_;  // tile registers
  std::optional<RowEpilogue> to_rows_;
  uint64_t own_product_ = 0;  // not 0: each thread packs A for itself, and this is the product's number
};

}  // namespace npu::gemm
