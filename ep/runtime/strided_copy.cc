#include "ep/runtime/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "ep/runtime/thread_pool.h"

namespace npu {
namespace {

struct Bytes16 {
  uint64_t words[2];
};

template <class T>
void CopyRow(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t n) {
  if (to_stride == 1 && from_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else if (to_stride == 1 && from_stride == 0) {
    std::fill(to, to + n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

template <class T>
void Copy(const StridedPair& pair, T* to, const T* from) {
  constexpr int64_t kGrain = (256 << 10) / static_cast<int64_t>(sizeof(T));
  const int inner = pair.rank - 1;
  const int64_t n = pair.dims[inner];
  // Whole rows where there are many of them, else parts of few.
  ParallelFor(pair.elements, kGrain, [&](int64_t begin, int64_t end) {
    int64_t column = begin % n;
    int64_t row = begin / n;
    int64_t index[Shape::kMaxRank] = {};
    int64_t to_base = 0, from_base = 0;
    for (int d = inner - 1; d >= 0; --d) {
      index[d] = row % pair.dims[d];
      row /= pair.dims[d];
      to_base += index[d] * pair.to[d];
      from_base += index[d] * pair.from[d];
    }
    while (begin < end) {
      const int64_t count = std::min(n - column, end - begin);
      CopyRow(to + to_base + column * pair.to[inner], pair.to[inner], from + from_base + column * pair.from[inner],
              pair.from[inner], count);
      begin += count;
      column = 0;
      for (int d = inner - 1; d >= 0; --d) {
        to_base += pair.to[d];
        from_base += pair.from[d];
        if (++index[d] < pair.dims[d]) break;
        to_base -= pair.to[d] * pair.dims[d];
        from_base -= pair.from[d] * pair.dims[d];
        index[d] = 0;
      }
    }
  });
}

template <class T>
void LaunchCopy(Stream& stream, const StridedPair& pair, void* to, const void* from) {
  stream.Launch("copy", [pair, to = static_cast<T*>(to), from = static_cast<const T*>(from)] { Copy(pair, to, from); });
}

}  // namespace

StridedPair MakeStridedPair(std::span<const int64_t> dims, std::span<const int64_t> to, std::span<const int64_t> from) {
  StridedPair pair;
  pair.elements = 1;
  std::vector<size_t> order;
  for (size_t d = 0; d < dims.size(); ++d) {
    pair.elements *= dims[d];
    if (dims[d] != 1) order.push_back(d);
  }
  // Written in the order of addresses.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return to[a] > to[b]; });
  for (const size_t d : order) {
    const int last = pair.rank - 1;
    if (last >= 0 && pair.to[last] == to[d] * dims[d] && pair.from[last] == from[d] * dims[d]) {
      pair.dims[last] *= dims[d];
      pair.to[last] = to[d];
      pair.from[last] = from[d];
      continue;
    }
    NPU_CHECK(pair.rank < Shape::kMaxRank, "[copy] expected a view of at most ", Shape::kMaxRank,
              " dimensions that cannot be merged, got more");
    pair.dims[pair.rank] = dims[d];
    pair.to[pair.rank] = to[d];
    pair.from[pair.rank++] = from[d];
  }
  if (pair.rank == 0) {
    pair.rank = 1;
    pair.dims[0] = pair.to[0] = pair.from[0] = 1;
  }
  return pair;
}

void LaunchStridedCopy(Stream& stream, const StridedPair& pair, size_t element_bytes, void* to, const void* from) {
  if (pair.elements == 0) return;
  switch (element_bytes) {
    case 1:
      return LaunchCopy<uint8_t>(stream, pair, to, from);
    case 2:
      return LaunchCopy<uint16_t>(stream, pair, to, from);
    case 4:
      return LaunchCopy<uint32_t>(stream, pair, to, from);
    case 8:
      return LaunchCopy<uint64_t>(stream, pair, to, from);
    case 16:
      return LaunchCopy<Bytes16>(stream, pair, to, from);
    default:
      Fail(ErrorCode::kUnsupported, "[copy] expected elements of 1, 2, 4, 8 or 16 bytes, got ", element_bytes);
  }
}

}  // namespace npu
