#include "ep/kernels/movement/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/copy.h"

namespace npu {
namespace {

constexpr int64_t kTileBytes = 64;  // a side of a tile of a transpose: one cache line

// The offset of row `row` of the dimensions [0, rank).
int64_t OffsetOf(const StridedView& view, int rank, int64_t row) {
  int64_t offset = 0;
  for (int d = rank - 1; d >= 0; --d) {
    offset += row % view.dims[d] * view.strides[d];
    row /= view.dims[d];
  }
  return offset;
}

template <class T>
void CopyRow(const T* src, int64_t stride, T* dst, int64_t n) {
  if (stride == 1) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(T));
  } else if (stride == 0) {
    std::fill(dst, dst + n, *src);
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i] = src[i * stride];
  }
}

template <class T>
void CopyByRows(const StridedView& view, const T* src, T* dst) {
  const int inner = view.rank - 1;
  const int64_t n = view.dims[inner];
  const int64_t grain = kCopyGrain / static_cast<int64_t>(sizeof(T));
  ParallelFor(view.total, grain, [&](int64_t begin, int64_t end) {
    int64_t row = begin / n;
    int64_t column = begin % n;
    std::array<int64_t, Shape::kMaxRank> index{};
    int64_t rest = row;
    for (int d = inner - 1; d >= 0; --d) {
      index[d] = rest % view.dims[d];
      rest /= view.dims[d];
    }
    int64_t base = OffsetOf(view, inner, row);
    while (true) {
      const int64_t count = std::min(n - column, end - begin);
      CopyRow(src + base + column * view.strides[inner], view.strides[inner], dst + begin, count);
      begin += count;
      if (begin >= end) return;
      column = 0;
      for (int d = inner - 1; d >= 0; --d) {
        base += view.strides[d];
        if (++index[d] < view.dims[d]) break;
        base -= view.strides[d] * view.dims[d];
        index[d] = 0;
      }
    }
  });
}

// The last two dimensions change places. A tile passes through a buffer, so that whole cache lines are
// read and written even when the strides put all lines of a tile into one set of the cache.
template <class T>
void CopyTransposed(const StridedView& view, const T* src, T* dst) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  const int64_t rows = view.dims[view.rank - 2];
  const int64_t columns = view.dims[view.rank - 1];
  const int64_t stride = view.strides[view.rank - 1];
  const int64_t bands = (rows + kTile - 1) / kTile;
  const int64_t matrices = view.total / (rows * columns);
  const int64_t grain = std::max<int64_t>(1, kCopyGrain / (kTileBytes * columns));
  ParallelFor(matrices * bands, grain, [&](int64_t begin, int64_t end) {
    alignas(64) T tile[kTile][kTile];
    for (int64_t band = begin; band < end; ++band) {
      const int64_t first = band % bands * kTile;
      const T* from = src + OffsetOf(view, view.rank - 2, band / bands) + first;
      T* to = dst + (band / bands * rows + first) * columns;
      const int64_t height = std::min(kTile, rows - first);
      for (int64_t j = 0; j < columns; j += kTile) {
        const int64_t width = std::min(kTile, columns - j);
        for (int64_t k = 0; k < width; ++k) {
          for (int64_t i = 0; i < height; ++i) tile[i][k] = from[(j + k) * stride + i];
        }
        for (int64_t i = 0; i < height; ++i) std::copy(tile[i], tile[i] + width, to + i * columns + j);
      }
    }
  });
}

}  // namespace

std::array<int64_t, Shape::kMaxRank> DenseStrides(const Shape& shape) {
  std::array<int64_t, Shape::kMaxRank> strides{};
  // Unsigned: an empty tensor may have other dimensions whose product does not fit, and nobody uses its strides.
  uint64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape[d], 1));
  }
  return strides;
}

StridedView MakeStridedView(const Shape& dims, const std::array<int64_t, Shape::kMaxRank>& strides) {
  StridedView view;
  view.total = dims.Elements();
  for (int d = 0; d < dims.rank(); ++d) {
    if (dims[d] == 1) continue;
    if (view.rank > 0 && view.strides[view.rank - 1] == strides[d] * dims[d]) {
      view.dims[view.rank - 1] *= dims[d];
      view.strides[view.rank - 1] = strides[d];
    } else {
      view.dims[view.rank] = dims[d];
      view.strides[view.rank++] = strides[d];
    }
  }
  if (view.rank == 0) {
    view.rank = 1;
    view.dims[0] = 1;
    view.strides[0] = 1;
  }
  return view;
}

void LaunchStridedCopy(OpContext& ctx, const char* op, const StridedView& view, int size, const void* src, void* dst) {
  if (view.total == 0) return;
  DispatchSize(size, [&](auto type) {
    using T = decltype(type);
    ctx.Launch(op, [view, from = static_cast<const T*>(src), to = static_cast<T*>(dst)] {
      const bool transposed = view.rank >= 2 && view.strides[view.rank - 2] == 1 && view.strides[view.rank - 1] > 1;
      if (transposed) {
        CopyTransposed(view, from, to);
      } else {
        CopyByRows(view, from, to);
      }
    });
  });
}

}  // namespace npu
