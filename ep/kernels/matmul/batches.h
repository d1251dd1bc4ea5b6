// Batches of matrices: numpy's matmul of operands with more than two axes.
#pragma once

#include <algorithm>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/matmul/matmul_shape.h"

namespace npu {

// Calls f(i) for every batch entry, on the pool if there are many or small entries; f itself may use the pool, where
// nested calls run serially.
template <class F>
void ForEachEntry(const MatMulShape& s, const F& f) {
  constexpr int64_t kGrainWork = 64 << 10;
  constexpr int64_t kSmall = 1 << 20;
  const int64_t work = std::max<int64_t>(1, s.m * s.n * std::max<int64_t>(1, s.k));
  if (work < kSmall || s.batches >= 4 * NumThreads()) {
    ParallelFor(s.batches, std::max<int64_t>(1, kGrainWork / work), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  } else {
    for (int64_t i = 0; i < s.batches; ++i) f(i);
  }
}

inline gemm::Matrix MatrixAt(const TensorView& t, int64_t index, int64_t rows, int64_t columns) {
  const char* data = t.as<const char>();
  return gemm::Matrix::RowMajor(data ? data + BytesFor(t.dtype, index * rows * columns) : nullptr, rows, columns);
}

}  // namespace npu
