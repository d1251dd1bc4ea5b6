// Results of an operator beside those of a naive reference in double, each with how far off it may be.
#pragma once

#include <cmath>
#include <cstdint>

#include "tests/cpp/support/host_tensor.h"

namespace npu::test {

struct Expected {
  double value, bound;
};

// How many of the results [.., rows, columns] are farther off than at(row, column) says, or no numbers.
template <class At>
int64_t CountWrong(const HostTensor& results, int64_t rows, int64_t columns, const At& at) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const Expected expected = at(i, j);
      wrong += !(std::fabs(results[i * columns + j] - expected.value) <= expected.bound);
    }
  return wrong;
}

// The same of the RMS norms y of rows of sums. Two multiplications in float32, rstd in float32, and the result's own
// `rounding` make them inexact.
inline int64_t CountWrongNorms(const HostTensor& y, const HostTensor& sums, const HostTensor& gamma, int64_t rows,
                               double epsilon, double rounding) {
  const int64_t n = gamma.elements();
  int64_t row = -1;
  double rstd = 0;
  return CountWrong(y, rows, n, [&](int64_t i, int64_t j) -> Expected {
    if (i != row) {
      double squares = 0;
      for (int64_t k = 0; k < n; ++k) squares += sums[i * n + k] * sums[i * n + k];
      rstd = 1 / std::sqrt(squares / static_cast<double>(n) + epsilon);
      row = i;
    }
    const double expected = sums[i * n + j] * rstd * gamma[j];
    return {expected, (rounding + 0x1p-21) * std::fabs(expected) + 0x1p-24};
  });
}

}  // namespace npu::test
