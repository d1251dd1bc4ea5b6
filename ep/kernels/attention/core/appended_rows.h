// Rows of keys, values or queries gathered in one tensor, inside a launch: those of a cache, then new ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/attention/core/layout.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/movement/copy.h"

namespace npu::attention {

// Writes [B, N, capacity, D]: the rows of `past`, unless they are there already, and from row `first` on the new ones.
struct AppendedRows {
  const char* op;
  DType dtype;
  const void* added;
  Axes axes;                   // of the new rows
  const void* bias = nullptr;  // [N, D] of dtype, added to each new row
  void* all = nullptr;
  int64_t capacity = 0;
  const void* past = nullptr;  // [B, N, past_rows, D]
  int64_t past_rows = 0;
  int64_t first = 0;

  void Run() const {
    const int64_t element = BitsOf(dtype) / 8, row = axes.size * element;
    const int64_t bytes = (past_rows + axes.rows) * row;
    ParallelFor(axes.batch * axes.heads, std::max<int64_t>(1, kCopyGrain / std::max<int64_t>(1, bytes)),
                [=, this](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    char* to = static_cast<char*>(all) + i * capacity * row;
                    if (past != nullptr && past != all)
                      CopyRows(to, 0, static_cast<const char*>(past) + i * past_rows * row, 0, past_rows * row, 1);
                    Append(i / axes.heads, i % axes.heads, element, to + first * row);
                  }
                });
  }

 private:
  void Append(int64_t entry, int64_t head, int64_t element, char* to) const {
    const int64_t from = entry * axes.batch_stride + head * axes.head_stride;
    const char* source = static_cast<const char*>(added) + from * element;
    if (bias == nullptr) {
      CopyRows(to, axes.size * element, source, axes.row_stride * element, axes.size * element, axes.rows);
      return;
    }
    DispatchFloats(op, dtype, [&](auto type) {
      using T = decltype(type);
      const T* addend = static_cast<const T*>(bias) + head * axes.size;
      for (int64_t r = 0; r < axes.rows; ++r) {
        const T* values = reinterpret_cast<const T*>(source) + r * axes.row_stride;
        T* sums = reinterpret_cast<T*>(to) + r * axes.size;
        for (int64_t d = 0; d < axes.size; ++d) sums[d] = FromFloat<T>(ToFloat(values[d]) + ToFloat(addend[d]));
      }
    });
  }
};

}  // namespace npu::attention
