#include "ep/runtime/strided_copy.h"

#include <algorithm>

#include "ep/runtime/strided_copy_loops.h"

namespace npu {

StridedPair MakeStridedPair(std::span<const int64_t> dims, std::span<const int64_t> to, std::span<const int64_t> from) {
  StridedPair pair;
  // Of an empty tensor the other dimensions may be anything.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return pair;
  constexpr size_t kMaxDims = 64;  // as in torch
  NPU_CHECK(dims.size() <= kMaxDims, "[copy] expected a view of at most ", kMaxDims, " dimensions, got ", dims.size());
  std::array<size_t, kMaxDims> order;  // that of addresses that are written; as it is, where that is dense
  for (size_t d = 0; d < dims.size(); ++d) {
    size_t place = d;
    for (; place > 0 && to[order[place - 1]] < to[d]; --place) order[place] = order[place - 1];
    order[place] = d;
  }
  pair.elements = 1;
  for (const size_t d : std::span(order).first(dims.size())) {
    if (dims[d] == 1) continue;
    pair.elements *= dims[d];
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

StridedPair MakeStridedPair(const Shape& shape, const std::array<int64_t, Shape::kMaxRank>& from) {
  const auto rank = static_cast<size_t>(shape.rank());
  const std::array<int64_t, Shape::kMaxRank> to = DenseStrides(shape);
  return MakeStridedPair({shape.begin(), rank}, {to.data(), rank}, {from.data(), rank});
}

std::array<int64_t, Shape::kMaxRank> DenseStrides(const Shape& shape) {
  std::array<int64_t, Shape::kMaxRank> strides{};
  // Unsigned: an empty tensor may have other dimensions whose product does not fit, and its strides are not used.
  uint64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape[d], 1));
  }
  return strides;
}

void LaunchStridedCopy(Stream& stream, const char* op, const StridedPair& pair, size_t element_bytes, void* to,
                       const void* from) {
  strided::Launch(stream, op, pair, element_bytes, to, from);
}

}  // namespace npu
