// Groups of the rows of a matrix, in order, as operators of experts take them in a tensor on the device.
#pragma once

#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu {

enum class GroupListType {
  kEnds = 0,    // [groups]: where each group ends
  kCounts = 1,  // [groups]: how many rows it has
  kPairs = 2,   // [groups, 2]: which matrix it has, and how many rows
};

// Calls f(matrix, begin, count) for every group; returns the number of rows that are in one. The values are data of the
// call and may be anything: throws "[op] expected …, got …" before any call of f.
template <class F>
int64_t ForEachGroup(const char* op, const TensorView& list, GroupListType type, int64_t rows, int64_t matrices,
                     const F& f) {
  const int64_t* values = list.as<const int64_t>();
  const bool pairs = type == GroupListType::kPairs;
  const int64_t groups = list.shape[0];
  const auto value_of = [&](int64_t i) { return pairs ? values[2 * i + 1] : values[i]; };
  int64_t previous = 0;
  for (int64_t i = 0; i < groups; ++i) {
    NPU_CHECK(!pairs || (values[2 * i] >= 0 && values[2 * i] < matrices), "[", op,
              "] expected indices of group_list in [0, ", matrices, "), entry ", i, ", got ", values[2 * i]);
    const bool ends = type == GroupListType::kEnds;
    const int64_t low = ends ? previous : 0, high = ends ? rows : rows - previous, value = value_of(i);
    NPU_CHECK(value >= low && value <= high, "[", op, "] expected group_list to divide ", rows,
              " rows in order, entry ", i, " in [", low, ", ", high, "], got ", value);
    previous = ends ? value : previous + value;
  }
  int64_t begin = 0;
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t count = type == GroupListType::kEnds ? value_of(i) - begin : value_of(i);
    f(pairs ? values[2 * i] : i, begin, count);
    begin += count;
  }
  return begin;
}

}  // namespace npu
