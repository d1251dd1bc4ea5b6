// Operators that choose some rows of a tensor: slices along an axis or, without an axis, elements.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/reduce/axis.h"

namespace npu {

// The rows of a tensor of this shape: n of them in each of `outer` parts.
inline AxisView RowsAlong(const char* op, const Shape& shape, std::optional<int64_t> axis) {
  if (!axis) return {1, shape.Elements(0, shape.rank()), 1};
  return ViewAround(shape, NormalizeAxis(op, *axis, shape.rank()));
}

// The shape of the `count` rows that were chosen.
inline Shape ShapeOfRows(const char* op, const Shape& shape, std::optional<int64_t> axis, int64_t count) {
  if (!axis) return {count};
  Shape chosen = shape;
  chosen[NormalizeAxis(op, *axis, shape.rank())] = count;
  return chosen;
}

// y[o, i] = x[o, rows[i]] for rows of `bytes`, o below view.outer, i below `count`, which are not 0.
inline void CopyRows(const AxisView& view, const char* x, const int64_t* rows, int64_t count, int64_t bytes, char* y) {
  ParallelFor(view.outer * count, std::max<int64_t>(1, kCopyGrain / bytes), [=](int64_t begin, int64_t end) {
    const auto each = [&](const auto& copy) {
      for (int64_t item = begin; item < end; ++item)
        copy(y + item * bytes, x + (item / count * view.n + rows[item % count]) * bytes);
    };
    if (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) {  // a copy of known size is one instruction
      DispatchSize(static_cast<int>(bytes), [&](auto element) {
        each([](char* to, const char* from) { std::memcpy(to, from, sizeof element); });
      });
    } else {
      each([&](char* to, const char* from) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
    }
  });
}

}  // namespace npu
