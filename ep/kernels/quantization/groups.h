// Groups of rows, given by the row at which each of them ends, or by their numbers of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

namespace npu {

// Checks the ends, which are data and may be anything, and keeps what was checked in `checked`.
template <class Index>
void CheckGroups(const char* op, const Index* ends, int64_t groups, int64_t rows, int64_t* checked) {
  int64_t previous = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t end = ReadOnce(ends + e);
    NPU_OP_CHECK(op, end >= previous && end <= rows, "expected group_index to ascend up to the ", rows, " rows, entry ",
                 e, " in [", previous, ", ", rows, "], got ", end);
    checked[e] = previous = end;
  }
  NPU_OP_CHECK(op, previous == rows, "expected group_index to end with the ", rows, " rows, got ", previous);
}

inline void CheckGroups(const char* op, const TensorView& ends, int64_t rows, int64_t* checked) {
  if (ends.dtype == DType::kInt32) return CheckGroups(op, ends.as<const int32_t>(), ends.elements(), rows, checked);
  CheckGroups(op, ends.as<const int64_t>(), ends.elements(), rows, checked);
}

// Checks the numbers of rows, which are data and may be anything, and keeps the ends that they give in `ends`. Rows may
// be left over.
inline void CheckCounts(const char* op, const int64_t* counts, int64_t groups, int64_t rows, int64_t* ends) {
  int64_t end = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t count = ReadOnce(counts + e);
    NPU_OP_CHECK(op, count >= 0 && count <= rows - end, "expected group_index to count up to the ", rows,
                 " rows, entry ", e, " in [0, ", rows - end, "], got ", count);
    ends[e] = end += count;
  }
}

// The group that a row below the last end is in; empty groups have none.
inline int64_t GroupOf(const int64_t* ends, int64_t groups, int64_t row) {
  return std::upper_bound(ends, ends + groups, row) - ends;
}

}  // namespace npu
