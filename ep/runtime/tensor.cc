#include "ep/runtime/tensor.h"

#include <algorithm>

namespace npu {

int64_t Shape::Elements(int from, int to) const {
  bool empty = false;
  for (int i = from; i < to; ++i) {
    NPU_CHECK(dims_[i] >= 0, "expected dimensions >= 0, got shape ", ToString());
    empty |= dims_[i] == 0;
  }
  if (empty) return 0;  // whatever the other dimensions: 0 × 2^62 × 2^62 does not overflow
  int64_t product = 1;
  for (int i = from; i < to; ++i)
    NPU_CHECK(!__builtin_mul_overflow(product, dims_[i], &product),
              "expected a shape whose number of elements fits int64, got ", ToString());
  return product;
}

std::string Shape::ToString() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(dims_[i]);
  }
  return out + "]";
}

int NormalizeAxis(const char* op, int64_t axis, int rank) {
  NPU_CHECK(axis >= -rank && axis < rank, "[", op, "] expected an axis in [", -rank, ", ", rank - 1, "], got ", axis);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Shape BroadcastShapes(const char* op, const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape out = longer;
  const int offset = longer.rank() - shorter.rank();
  for (int i = 0; i < shorter.rank(); ++i) {
    int64_t& d = out[offset + i];
    if (d == shorter[i] || shorter[i] == 1) continue;
    NPU_CHECK(d == 1, "[", op, "] expected broadcastable shapes, got ", a, " and ", b);
    d = shorter[i];
  }
  return out;
}

}  // namespace npu
