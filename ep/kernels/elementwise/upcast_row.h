// Rows of elements to and from the type they are computed in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/elementwise/types.h"

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

}  // namespace npu
