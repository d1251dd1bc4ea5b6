// What a fused convolution does to its products while they are in a cache: a residual is added and an activation
// applied.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/activation/output_activation.h"

namespace npu::convolution {

struct Finish {
  OutputActivation activation = {};
  TensorView y = {}, residual = {};  // of one shape

  explicit operator bool() const { return activation || residual; }

  // The elements [first, first + count) of the output, in place.
  void InPlace(int64_t first, int64_t count) const {
    if (*this) Rows(y.as<char>() + BytesFor(y.dtype, first), count, count, first, 1, count);
  }

  // `rows` rows of `count` products, `distance` elements apart, to the output from element `first` on, whose rows are
  // `pitch` elements apart. In parallel.
  void Rows(const void* products, int64_t distance, int64_t count, int64_t first, int64_t rows, int64_t pitch) const {
    DispatchTypes("Conv", y.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const T* from = static_cast<const T*>(products);
      ParallelFor(rows, std::max<int64_t>(1, kCheapGrain / count), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = first + row * pitch;
          activation.Apply(from + row * distance, residual ? residual.as<const T>() + at : nullptr, y.as<T>() + at,
                           count);
        }
      });
    });
  }
};

}  // namespace npu::convolution
