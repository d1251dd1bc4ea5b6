// Rows of elements to and from the type they are computed in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/row_block.h"

namespace npu {

// Source and destination do not overlap.
template <class T>
void UpcastRow(const T* from, ComputeType<T>* to, int64_t count) {
  if constexpr (kIsHalf<T>) {
    ToFloat(from, to, count);
  } else {
    std::copy_n(from, count, to);
  }
}

// The same the other way: every element is rounded.
template <class T>
void RoundRow(const ComputeType<T>* from, T* to, int64_t count) {
  if constexpr (kIsHalf<T>) {
    FromFloat(from, to, count);
  } else {
    std::copy_n(from, count, to);
  }
}

// Calls f(a block of `a`, one of `b`, where they begin, their length) for the blocks of two rows, in the type of the
// computation; f may change them.
template <class T, class F>
void ForEachUpcastPair(const T* a, const T* b, int64_t n, const F& f) {
  alignas(64) ComputeType<T> first[kRowBlock], second[kRowBlock];
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    UpcastRow(a + begin, first, count);
    UpcastRow(b + begin, second, count);
    f(first, second, begin, count);
  });
}

}  // namespace npu
