// The loops of copies between layouts, which every library that includes them compiles for its own instruction-set
// level: libnpu_runtime.so, which the bindings call, for any machine; the kernels for theirs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "ep/runtime/register_transpose.h"
#include "ep/runtime/strided_copy.h"
#include "ep/runtime/thread_pool.h"

namespace npu::strided {

inline constexpr int64_t kCopyBytes = 256 << 10;  // that are worth a thread
inline constexpr int64_t kTileBytes = 64;         // a side of a tile of a transpose: one cache line
inline constexpr int64_t kStripTiles = 64;        // of a thread's piece of a transpose

struct Bytes16 {
  uint64_t words[2];
};

// Where both sides are in a walk over some of the dimensions, the last of them fastest.
class Walk {
 public:
  // The dimensions of the pair but for the last and `but`, from step `index` on.
  Walk(const StridedPair& pair, int but, int64_t index) {
    for (int d = pair.rank - 2; d >= 0; --d) {
      if (d == but) continue;
      const int64_t at = index % pair.dims[d];
      index /= pair.dims[d];
      to += at * pair.to[d];
      from += at * pair.from[d];
      dimensions_[rank_++] = {at, pair.dims[d], pair.to[d], pair.from[d]};
    }
    if (rank_ == 0) dimensions_[rank_++] = {0, 1, 0, 0};
  }
  // `steps` along the fastest dimension, at most Left() of them.
  void Advance(int64_t steps) {
    to += steps * dimensions_[0].to;
    from += steps * dimensions_[0].from;
    dimensions_[0].at += steps;
    for (int d = 0; d < rank_ && dimensions_[d].at == dimensions_[d].size; ++d) {
      to -= dimensions_[d].to * dimensions_[d].size;
      from -= dimensions_[d].from * dimensions_[d].size;
      dimensions_[d].at = 0;
      if (d + 1 == rank_) return;
      to += dimensions_[d + 1].to;
      from += dimensions_[d + 1].from;
      ++dimensions_[d + 1].at;
    }
  }
  int64_t Left() const { return dimensions_[0].size - dimensions_[0].at; }
  int64_t ToStep() const { return dimensions_[0].to; }
  int64_t FromStep() const { return dimensions_[0].from; }
  int64_t to = 0, from = 0;

 private:
  struct Dimension {
    int64_t at, size, to, from;
  };
  int rank_ = 0;
  std::array<Dimension, Shape::kMaxRank> dimensions_;  // the fastest first
};

template <class T>
inline void CopyRow(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t n) {
  if (to_stride == 1 && from_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else if (to_stride == 1 && from_stride == 0) {
    std::fill(to, to + n, *from);
  } else if (to_stride == 1 && n == 3) {  // colours, last
    for (int64_t i = 0; i < 3; ++i) to[i] = from[i * from_stride];
  } else if (to_stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * from_stride];
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

template <class T>
inline void CopyByRows(const StridedPair& pair, T* to, const T* from) {
  const int inner = pair.rank - 1;
  const int64_t n = pair.dims[inner];
  // Whole rows where there are many of them, else parts of few.
  ParallelFor(pair.elements, kCopyBytes / static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
    const int64_t to_stride = pair.to[inner], from_stride = pair.from[inner];
    int64_t column = begin % n;
    Walk row(pair, inner, begin / n);
    while (begin < end) {
      const int64_t whole = column == 0 ? std::min(row.Left(), (end - begin) / n) : 0;
      if (whole == 0) {
        const int64_t count = std::min(n - column, end - begin);
        CopyRow(to + row.to + column * to_stride, to_stride, from + row.from + column * from_stride, from_stride,
                count);
        begin += count;
        if (column + count == n) row.Advance(1);
        column = 0;
        continue;
      }
      T* to_row = to + row.to;
      const T* from_row = from + row.from;
      const int64_t to_step = row.ToStep(), from_step = row.FromStep();
      for (int64_t i = 0; i < whole; ++i, to_row += to_step, from_row += from_step)
        CopyRow(to_row, to_stride, from_row, from_stride, n);
      begin += whole * n;
      row.Advance(whole);
    }
  });
}

// Whether tiles are transposed in registers.
template <class T>
inline constexpr bool kInRegisters = sizeof(T) < sizeof(Bytes16);

template <class T>
inline constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));

// height rows of width elements: side by side in `to` along a row, in `from` down a column. Lines of a column are too
// far apart for the processor to foresee: those of the tile below are prefetched.
template <class T>
inline void CopyTile(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t height, int64_t width) {
  constexpr int64_t kSide = kTile<T>;
  alignas(kTileBytes) T tile[kSide][kSide];
  for (int64_t k = 0; k < width; ++k) __builtin_prefetch(from + (k + width) * from_stride);
  const bool whole = height == kSide && width == kSide;
  if constexpr (kInRegisters<T>) {
    for (int64_t k = 0; whole && k < kSide; k += kBlockSide<T>)
      for (int64_t i = 0; i < kSide; i += kBlockSide<T>)
        TransposeBlock(from + k * from_stride + i, from_stride, &tile[i][k], kSide);
  }
  if (!kInRegisters<T> || !whole) {
    for (int64_t k = 0; k < width; ++k)
      for (int64_t i = 0; i < height; ++i) tile[i][k] = from[k * from_stride + i];
  }
  for (int64_t i = 0; i < height; ++i) std::copy(tile[i], tile[i] + width, to + i * to_stride);
}

// Dimension `across` and the last change places: elements are side by side along the one in `from`, along the other in
// `to`. A tile passes through a buffer, so that whole cache lines are read and written even when the strides put all
// lines of a tile into one set of the cache.
template <class T>
inline void CopyTransposed(const StridedPair& pair, int across, T* to, const T* from) {
  const int inner = pair.rank - 1;
  const int64_t rows = pair.dims[across], columns = pair.dims[inner];
  const int64_t to_stride = pair.to[across], from_stride = pair.from[inner];
  const int64_t strip = std::min(columns, kStripTiles * kTile<T>);
  const int64_t bands = (rows + kTile<T> - 1) / kTile<T>, strips = (columns + strip - 1) / strip;
  const int64_t pieces = pair.elements / (rows * columns) * bands * strips;
  ParallelFor(pieces, std::max<int64_t>(1, kCopyBytes / (kTileBytes * strip)), [&](int64_t begin, int64_t end) {
    int64_t first_column = begin % strips * strip, first_row = begin / strips % bands * kTile<T>;
    Walk matrix(pair, across, begin / strips / bands);
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t end_column = std::min(columns, first_column + strip), height = std::min(kTile<T>, rows - first_row);
      T* const to_band = to + matrix.to + first_row * to_stride;
      const T* const from_band = from + matrix.from + first_row;
      for (int64_t j = first_column; j < end_column; j += kTile<T>) {
        const int64_t width = std::min(kTile<T>, end_column - j);
        if (height == kTile<T> && width == kTile<T>) {
          CopyTile(to_band + j, to_stride, from_band + j * from_stride, from_stride, kTile<T>, kTile<T>);
        } else {
          CopyTile(to_band + j, to_stride, from_band + j * from_stride, from_stride, height, width);
        }
      }
      first_column = end_column;
      if (first_column < columns) continue;
      first_column = 0;
      first_row += kTile<T>;
      if (first_row < rows) continue;
      first_row = 0;
      matrix.Advance(1);
    }
  });
}

template <class T>
inline void Copy(const StridedPair& pair, T* to, const T* from) {
  const int inner = pair.rank - 1;
  // Of what has not a tile's size, whole cache lines are used before they leave L1 either way.
  if (pair.to[inner] == 1 && pair.from[inner] != 0 && pair.dims[inner] >= kTile<T>) {
    for (int d = 0; d < inner; ++d)
      if (pair.from[d] == 1 && pair.dims[d] >= kTile<T>) return CopyTransposed(pair, d, to, from);
  }
  CopyByRows(pair, to, from);
}

template <class T>
inline void LaunchAs(Stream& stream, const char* op, const StridedPair& pair, void* to, const void* from) {
  stream.Launch(op, [pair, to = static_cast<T*>(to), from = static_cast<const T*>(from)] { Copy(pair, to, from); });
}

// As LaunchStridedCopy.
inline void Launch(Stream& stream, const char* op, const StridedPair& pair, size_t element_bytes, void* to,
                   const void* from) {
  if (pair.elements == 0) return;
  switch (element_bytes) {
    case 1:
      return LaunchAs<uint8_t>(stream, op, pair, to, from);
    case 2:
      return LaunchAs<uint16_t>(stream, op, pair, to, from);
    case 4:
      return LaunchAs<uint32_t>(stream, op, pair, to, from);
    case 8:
      return LaunchAs<uint64_t>(stream, op, pair, to, from);
    case 16:
      return LaunchAs<Bytes16>(stream, op, pair, to, from);
    default:
      Fail(ErrorCode::kUnsupported, "[copy] expected elements of 1, 2, 4, 8 or 16 bytes, got ", element_bytes);
  }
}

}  // namespace npu::strided
