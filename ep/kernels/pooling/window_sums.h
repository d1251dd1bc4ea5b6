// Sums over the windows of a pool, of the elements or of a function of each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ep/kernels/pooling/rows.h"
#include "ep/kernels/pooling/windows.h"

namespace npu::pooling {

// Adds the sum of each window of a row x to sums.
template <class C>
void AddRow(const Plan& plan, const C* x, C* __restrict sums) {
  if (plan.by_tap()) {
    plan.ForEachTap([&](int64_t first, int64_t count, int64_t position, auto stride) {
      const C* from = x + position;
      C* to = sums + first;
      for (int64_t i = 0; i < count; ++i) to[i] += from[i * stride];
    });
    return;
  }
  for (int64_t o = 0; o < plan.columns(); ++o) {
    const Window& window = plan.windows()[o];
    const C* from = x + window.begin;
    const int64_t step = plan.step();
    C sum = 0;
    if (step == 1 && window.count >= 32) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < window.count; ++i) sum += from[i];
    } else {
      for (int64_t i = 0; i < window.count; ++i) sum += from[i * step];
    }
    sums[o] += sum;
  }
}

struct Unchanged {
  template <class C>
  C operator()(C value) const {
    return value;
  }
};

// Computes the sums of one output row after another; buffers are kept between them.
template <class T>
class WindowSums {
 public:
  using C = ComputeType<T>;
  explicit WindowSums(const Plan& plan)
      : plan_(plan), reader_(plan.width()), column_sums_(static_cast<size_t>(plan.width())) {}

  // sums[o] = the sum of term(value) over the window of column o in output row `row` of all planes of x. Rows are first
  // added to each other, which is a dense loop; then the windows are summed once.
  template <class F>
  void Row(const T* x, int64_t row, const F& term, C* sums) {
    const int64_t width = plan_.width();
    const T* image = x + row / plan_.rows_out() * plan_.inputs();
    C* to = column_sums_.data();
    const C* total = nullptr;
    plan_.ForEachInputRow(row % plan_.rows_out(), [&](int64_t input_row, int64_t) {
      const C* values = reader_(image + input_row * width, width);
      if (std::is_same_v<F, Unchanged> && plan_.rows_in() == 1) {
        total = values;
        return;
      }
      if (total == nullptr) {
        for (int64_t i = 0; i < width; ++i) to[i] = term(values[i]);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) to[i] += term(values[i]);
      }
      total = to;
    });
    std::fill(sums, sums + plan_.columns(), C{0});
    if (total != nullptr) AddRow(plan_, total, sums);
  }

 private:
  const Plan& plan_;
  RowReader<T> reader_;
  std::vector<C> column_sums_;
};

}  // namespace npu::pooling
