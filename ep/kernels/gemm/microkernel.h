// The innermost functions: a sliver of A times a panel of B is a tile of C in float32, or of integers in int32.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/packing.h"

namespace npu::gemm {

// Rows of A as a micro-kernel reads them: chunks of kChunkBytes, and the steps in bytes to the next row and the next
// chunk of a row.
struct Sliver {
  const void* data = nullptr;
  int64_t row_stride = 0, chunk_stride = 0;

  static Sliver Packed(const void* data, int64_t stored_rows) { return {data, kChunkBytes, stored_rows * kChunkBytes}; }
};

// Where a micro-kernel that goes step by step along K stands in the rows of a sliver. One pointer serves four rows: an
// address reaches up to three strides beyond it, so that all rows fit the registers.
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

// What a micro-kernel brings into the cache while it works: with every stored row of its panel the next `step` bytes
// from `data` on, at most as many as a row has, and with every chunk of K one of the rows of C that the sums are for.
struct Prefetch {
  const char* data = nullptr;
  int64_t step = 0;
  const char* result = nullptr;
  int64_t result_stride = 0, result_end = 0, result_rows = 0;

  // For one stored row of two lines or less. Steps of less than a line ask for some lines twice, which costs less than
  // to count. Into the second-level cache: lines on their way to the first would take the places there that loads wait
  // for, which costs a product of many rows its multiplications and one of a single row a tenth of the memory's rate.
  template <int kRowBytes>
  void Row() {
    constexpr int kSecondLevel = 2;
    __builtin_prefetch(data, 0, kSecondLevel);
    if constexpr (kRowBytes > 64) __builtin_prefetch(data + step / 2, 0, kSecondLevel);
    data += step;
  }

  // A store to a line that no cache has waits until the line was read. To ask for all rows at once would hold up the
  // loads of the next steps instead.
  void ResultRow() {
    if (result_rows == 0) return;
    __builtin_prefetch(result, 1);
    __builtin_prefetch(result + result_end, 1);
    result += result_stride;
    --result_rows;
  }

  // How far ahead a panel is asked for that is read once. Few rows are quickest with 2 to 4 KB, and with tile registers
  // 4 KB had lost to 2 KB; more rows take more time for a line, but ask for it between multiplications: 2 KB loses a
  // sixth there to 8 KB.
  static int64_t Distance(int64_t rows) {
    constexpr int64_t kFewRows = 4;
    if (rows > kFewRows) return 8192;
    return Features().amx_tile ? 2048 : 3072;
  }
};

// tile[rows][kPanelColumns] (+)= a * b over `depth` steps of K. All are 64-byte aligned, except an `a` that is part of
// the caller's own matrix. Reads nothing beyond them. The sums of integers are int32 in the same place.
using TileFunction = void (*)(const Sliver& a, const void* b, Prefetch prefetch, int64_t depth, float* tile,
                              bool accumulate);

inline constexpr int kMaxSliverRows = 32;

struct MicroKernel {
  SliverFormat sliver_format;
  int sliver_rows;     // the most rows that it takes
  int row_multiple;    // slivers are stored with a multiple of these many rows
  int depth_multiple;  // of slivers that are not packed
  int rows_per_panel;  // this many rows or more hide what it costs to bring a panel from memory
  TileFunction functions[kMaxSliverRows + 1] = {};  // by stored rows

  int64_t StoredRows(int64_t rows) const { return (rows + row_multiple - 1) / row_multiple * row_multiple; }
};

// The kernel of this machine for an A of `dtype`, panels of `format` and a product of `m` rows.
const MicroKernel& SelectKernel(DType dtype, PanelFormat format, int64_t m);

// Those of one instruction set; null when this build or machine lacks it.
const MicroKernel* FloatKernel(PanelFormat format);
const MicroKernel* Bf16Kernel();  // AVX512_BF16
const MicroKernel* AmxKernel(DType dtype, PanelFormat format);
const MicroKernel* VnniKernel();                     // AVX512_VNNI, panels of quads
const MicroKernel& IntegerKernel(bool unsigned_a);  // of every level, panels of quads

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

}  // namespace npu::gemm
