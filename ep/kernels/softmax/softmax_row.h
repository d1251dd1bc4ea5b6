// Softmax of one row of floats or doubles, and distribution of rows to threads that each need a row of scratch.
#pragma once

#include <algorithm>
#include <limits>

#include "ep/kernels/elementwise/real.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// In place. NaN anywhere makes the row NaN, and so does a row of -inf alone, as in torch.
template <class C>
void SoftmaxRow(C* x, int64_t n) {
  C max = -std::numeric_limits<C>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  C sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    x[i] = real::Exp(x[i] - max);
    sum += x[i];
  }
  const C scale = C{1} / sum;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

// The logarithms of the softmax, in place; as exact for large differences as for small ones.
template <class C>
void LogSoftmaxRow(C* x, int64_t n) {
  C max = -std::numeric_limits<C>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  C sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += real::Exp(x[i] - max);
  const C log_sum = real::Log(sum);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] - max - log_sum;
}

// The number of threads worth using for this many elements.
inline int64_t ThreadsForElements(int64_t elements) {
  constexpr int64_t kElementsPerThread = 16 * 1024;
  return std::clamp<int64_t>(elements / kElementsPerThread, 1, NumThreads());
}

// Calls f(thread, first row, last row) with the rows divided evenly.
template <class F>
void ForRowsOfThreads(int64_t rows, int64_t threads, F&& f) {
  ParallelFor(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) f(t, rows * t / threads, rows * (t + 1) / threads);
  });
}

}  // namespace npu
