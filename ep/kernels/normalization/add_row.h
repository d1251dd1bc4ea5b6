// The sum of two rows, of every norm that adds a residual.
#pragma once

#include <cstdint>

#include "ep/kernels/row_block.h"

namespace npu {

// sum = a + b over a row, rounded once. sum may be a or b.
template <class T>
void AddRow(const T* a, const T* b, T* sum, int64_t n) {
  InBlock<T> in_a, in_b;
  OutBlock<T> out;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* va = in_a.Load(a + begin, count);
    const float* vb = in_b.Load(b + begin, count);
    float* r = out.Values(sum + begin);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) r[i] = va[i] + vb[i];
    out.Commit(sum + begin, count);
  });
}

}  // namespace npu
