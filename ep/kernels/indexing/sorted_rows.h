// The order of the slices of a tensor along one axis, for the operators that find distinct ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/sorted_positions.h"

namespace npu {

// Row i of a dense tensor [outer, count, inner]: all elements whose middle coordinate is i.
template <class T>
struct Rows {
  const T* x;
  int64_t outer, count, inner;

  int64_t elements() const { return outer * count * inner; }
  bool single() const { return outer == 1 && inner == 1; }
  // Negative, 0 or positive: row a sorts before, like or after row b. NaN sorts last, all NaN alike.
  int Compare(int64_t a, int64_t b) const {
    for (int64_t o = 0; o < outer; ++o) {
      const T* left = x + (o * count + a) * inner;
      const T* right = x + (o * count + b) * inner;
      for (int64_t k = 0; k < inner; ++k) {
        const ComputeType<T> l = Upcast(left[k]), r = Upcast(right[k]);
        if (l < r) return -1;
        if (r < l) return 1;
        if ((l != l) != (r != r)) return l != l ? 1 : -1;
      }
    }
    return 0;
  }
};

// The bytes of scratch memory that SortRows needs.
template <class T>
size_t SortScratch(const Rows<T>& rows) {
  if (!rows.single()) return static_cast<size_t>(rows.elements()) * sizeof(T);
  size_t bytes = 0;
  WithKeyType<ComputeType<T>>(rows.count, [&](auto key) {
    bytes = static_cast<size_t>(Shape{rows.count, 2, static_cast<int64_t>(sizeof(key))}.Elements());
  });
  return bytes;
}

// Writes the rows' numbers in their order; equal rows keep theirs. A copy is sorted: rows that another stream changes
// have no order, and std::stable_sort then leaves its bounds.
template <class T>
void SortRows(const Rows<T>& rows, void* scratch, int64_t* order) {
  if (rows.single()) {
    WithKeyType<ComputeType<T>>(rows.count, [&](auto type) {
      using Key = decltype(type);
      auto* const keys = static_cast<Key*>(scratch);
      for (int64_t i = 0; i < rows.count; ++i) keys[i] = {UnsignedKey(Upcast(rows.x[i])), i};
      SortKeys(keys, rows.count, keys + rows.count);
      for (int64_t i = 0; i < rows.count; ++i) order[i] = keys[i].position();
    });
  } else {
    const Rows<T> kept{static_cast<T*>(scratch), rows.outer, rows.count, rows.inner};
    std::copy_n(rows.x, rows.elements(), static_cast<T*>(scratch));
    std::iota(order, order + rows.count, int64_t{0});
    std::stable_sort(order, order + rows.count, [&](int64_t a, int64_t b) { return kept.Compare(a, b) < 0; });
  }
}

}  // namespace npu
