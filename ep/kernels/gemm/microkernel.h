// The innermost functions: a sliver of A times a panel of B gives a tile of C in float32, or in int32 for integers.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/packing.h"

namespace npu::gemm {

// Rows of A as a micro-kernel reads them: chunks of kChunkBytes, with byte strides to the next row and to the next
// chunk of a row.
struct Sliver {
  const void* data = nullptr;
  int64_t row_stride = 0, chunk_stride = 0;

  static Sliver Packed(const void* data, int64_t stored_rows) { return {data, kChunkBytes, stored_rows * kChunkBytes}; }
};

// The position along K of a micro-kernel in the rows of a sliver. One pointer serves four rows: addressing modes reach
// up to three strides beyond it, so that the pointers of all rows fit the registers.
template <int kRows>
class RowPointers {
 public:
  explicit RowPointers(const Sliver& sliver) : stride_(sliver.row_stride) {
    for (int i = 0; i < kPointers; ++i) base_[i] = static_cast<const char*>(sliver.data) + kRowsEach * i * stride_;
  }
  template <class T>
  T Read(int row, int64_t bytes) const {
    T value;
    __builtin_memcpy(&value, base_[row / kRowsEach] + row % kRowsEach * stride_ + bytes, sizeof(value));
    return value;
  }
  void Advance(int64_t bytes) {
    for (int i = 0; i < kPointers; ++i) base_[i] += bytes;
  }

 private:
  static constexpr int kRowsEach = 4;
  static constexpr int kPointers = (kRows + kRowsEach - 1) / kRowsEach;
  const char* base_[kPointers];
  int64_t stride_;
};

// What a micro-kernel prefetches while it works: with every stored row of its panel the next `step` bytes from `data`
// on, at most as many as a row has, and with every chunk of K one of the rows of C to which the sums are stored, and
// two of the lines, `later_stride` apart, that are read long after it.
struct Prefetch {
  const char* data = nullptr;
  int64_t step = 0;
  const char* result = nullptr;
  int64_t result_stride = 0, result_end = 0, result_rows = 0;
  const char* later = nullptr;
  int64_t later_stride = 0, later_lines = 0;

  // For one stored row of at most two lines. Steps of less than a line prefetch some lines twice, which is cheaper than
  // counting. Into the L2 cache: lines on their way to L1 would occupy the L1 fill buffers that loads need, which
  // stalls the multiplications of a GEMM of many rows and costs one of a single row a tenth of the memory bandwidth.
  template <int kRowBytes>
  void Row() {
    __builtin_prefetch(data, 0, kSecondLevel);
    if constexpr (kRowBytes > 64) __builtin_prefetch(data + step / 2, 0, kSecondLevel);
    data += step;
  }

  void Chunk() {
    ResultRow();
    if (later_lines > 0) LaterLines();
  }

  // A store to an uncached line waits until the line has been read. Prefetching all rows up front would delay the loads
  // of the next steps instead.
  void ResultRow() {
    if (result_rows == 0) return;
    __builtin_prefetch(result, 1);
    if (reinterpret_cast<uintptr_t>(result) % 64 + static_cast<uintptr_t>(result_end) >= 64)
      __builtin_prefetch(result + result_end, 1);
    result += result_stride;
    --result_rows;
  }

  void LaterLines() {
    __builtin_prefetch(later, 0, kSecondLevel);
    __builtin_prefetch(later + later_stride, 0, kSecondLevel);
    later += 2 * later_stride;
    later_lines -= 2;
  }

  // The prefetch distance of a panel that is read once. Few rows are fastest with 2 to 4 KB, and with tile registers 4
  // KB was slower than 2 KB; more rows take more time per line but prefetch between multiplications: there 2 KB is a
  // sixth slower than 8 KB.
  static int64_t Distance(int64_t rows) {
    constexpr int64_t kFewRows = 4;
    if (rows > kFewRows) return 8192;
    return Features().amx_tile ? 2048 : 3072;
  }

 private:
  static constexpr int kSecondLevel = 2;
};

// tile[rows][kPanelColumns] (+)= a * b over `depth` steps of K. All are 64-byte aligned, except an `a` that is part of
// the caller's matrix. Does not read beyond them. Sums of integers are int32 values in `tile`.
// `ahead` is no value: a caller that has just written some of its members would copy all of them at once, for which the
// processor waits until every store before them, also to rows of C that are in no cache, has been done.
using TileFunction = void (*)(const Sliver& a, const void* b, const Prefetch& ahead, int64_t depth, float* tile,
                              bool accumulate);

inline constexpr int kMaxSliverRows = 32;

// The same with tile registers.
struct AmxWork;
using AmxFunction = void (*)(const Sliver& a, const void* b, AmxWork& work, int64_t depth, float* tile,
                             bool accumulate);

struct MicroKernel {
  SliverFormat sliver_format;
  int sliver_rows;     // the maximum number of rows
  int row_multiple;    // slivers are stored with a multiple of this many rows
  int depth_multiple;  // of slivers that are not packed
  int rows_per_panel;  // with this many rows or more, computing hides the cost of loading a panel from memory
  TileFunction functions[kMaxSliverRows + 1] = {};  // indexed by stored rows; of vectors
  // The same for the first half of the columns, without writing the others; of floats and pairs, null on ARM64 for the
  // latter.
  TileFunction half_functions[kMaxSliverRows + 1] = {};

  // Of tile registers alone.
  int chunk_depth = 0;    // K is walked in chunks of at most this depth, of which B stays in the L1 cache
  int group_slivers = 1;  // while so many slivers are multiplied by it
  AmxFunction amx_functions[kMaxSliverRows + 1] = {};

  bool uses_tiles() const { return chunk_depth > 0; }
  // Of vectors, by stored rows, for a panel of which so many columns are read.
  const TileFunction* FunctionsFor(int64_t columns) const {
    return columns <= kPanelColumns / 2 && half_functions[1] != nullptr ? half_functions : functions;
  }
  int64_t StoredRows(int64_t rows) const { return (rows + row_multiple - 1) / row_multiple * row_multiple; }
};

// The kernel for A of `dtype`, panels of `format` and a GEMM of `m` rows on this machine.
const MicroKernel& SelectKernel(DType dtype, PanelFormat format, int64_t m);

// The same for a product that may expand the panels that it multiplies.
const MicroKernel& SelectProductKernel(DType dtype, PanelFormat format, int64_t m);

// The kernels of one instruction set; null if this build or machine lacks it.
const MicroKernel* FloatKernel(PanelFormat format);
const MicroKernel* Bf16Kernel();
const MicroKernel* AmxKernel(DType dtype, PanelFormat format);
const MicroKernel* IntegerDotKernel(DType a);       // panels of quads
const MicroKernel& IntegerKernel(bool unsigned_a);  // of every level, panels of quads
const MicroKernel* WordKernel();                    // panels of words

// Create one around the micro-kernels of a thread: configures the tile registers if the kernel uses them. With `rows`
// they multiply slivers of as many rows only, of which no others are read.
class ScopedTiles {
 public:
  explicit ScopedTiles(const MicroKernel& kernel, int64_t rows = kMaxSliverRows);
  ~ScopedTiles();
  ScopedTiles(const ScopedTiles&) = delete;
  ScopedTiles& operator=(const ScopedTiles&) = delete;

 private:
  bool active_;
};

}  // namespace npu::gemm
