// Results of rows that are only divided by their sums of weights and rounded, which most are: kLanes rows at a time,
// whose weighted sums of values are [column][row].
#pragma once

#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

// Whether the rows of an item are such, if results have this dtype: nothing else is written or added, and keys are not
// split.
inline bool ArePlainRows(const Problem& p, const Item& item, DType dtype) {
  return item.partial < 0 && p.output_dtype == dtype && p.value_size % kLanes == 0 && p.value_scale.data == nullptr &&
         p.sink == nullptr && p.lse == nullptr && p.row_max == nullptr && p.row_sum == nullptr;
}

// Writes `count` rows from row `first` of the item on. Returns false, perhaps after some, if a result is not finite:
// EmitRow knows what it should be.
template <class T>
bool StorePlainRows(const Problem& p, const Item& item, int64_t first, int64_t count, const float* sums,
                    int64_t column_stride, Vec weights, T* output) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  T* to[kLanes];
  RowPlaces places(p, item, first);
  for (int64_t lane = 0; lane < count; ++lane) {
    const RowPlace at = places.Next();
    to[lane] = output + s.output + at.head * p.output.head_stride + at.query * p.output.row_stride;
  }
  const Vec inverse = weights == 0.0f ? Vec{} : 1.0f / weights;  // a row may see no keys
  for (int64_t d = 0; d < p.value_size; d += kLanes) {
    Vec block[kLanes], zeros = {};  // or NaN
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      block[i] = Load(sums + (d + i) * column_stride) * inverse;
      zeros += block[i] * 0.0f;
    }
    if (!AllEqual(zeros, 0.0f)) return false;
    Transpose(block);
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane)
      if (lane < count) simd::StoreRounded(simd::Rounded<T>(block[lane]), to[lane] + d);
  }
  return true;
}

}  // namespace npu::attention
