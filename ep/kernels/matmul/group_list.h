// Groups of the rows of a matrix, in order, as operators of experts take them in a tensor on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

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
  const bool pairs = type == GroupListType::kPairs, ends = type == GroupListType::kEnds;
  struct Group {
    int64_t matrix, begin, count;
  };
  std::vector<Group> checked(static_cast<size_t>(list.shape[0]));
  int64_t begin = 0;
  for (int64_t i = 0; i < list.shape[0]; ++i) {
    const int64_t matrix = pairs ? ReadOnce(values + 2 * i) : i, value = ReadOnce(values + (pairs ? 2 * i + 1 : i));
    NPU_OP_CHECK(op, !pairs || (matrix >= 0 && matrix < matrices), "expected indices of group_list in [0, ", matrices,
                 "), entry ", i, ", got ", matrix);
    const int64_t low = ends ? begin : 0, high = ends ? rows : rows - begin;
    NPU_OP_CHECK(op, value >= low && value <= high, "expected group_list to divide ", rows, " rows in order, entry ", i,
                 " in [", low, ", ", high, "], got ", value);
    const int64_t count = ends ? value - begin : value;
    checked[static_cast<size_t>(i)] = {matrix, begin, count};
    begin += count;
  }
  for (const Group& group : checked) f(group.matrix, group.begin, group.count);
  return begin;
}

}  // namespace npu
