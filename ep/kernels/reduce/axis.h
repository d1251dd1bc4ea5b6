// A tensor viewed as [outer, n, inner] around one axis.
#pragma once

#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu {

struct AxisView {
  int64_t outer, n, inner;
};

inline AxisView ViewAround(const Shape& shape, int axis) {
  return {shape.Elements(0, axis), shape[axis], shape.Elements(axis + 1, shape.rank())};
}

}  // namespace npu
