// The rows of a tensor that is broadcast to another one's shape.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

// Whether a tensor of shape `small` broadcasts to `shape` without changing it.
inline bool BroadcastsTo(const Shape& shape, const Shape& small) {
  const int missing = shape.rank() - small.rank();
  if (missing < 0) return false;
  for (int i = missing; i < shape.rank(); ++i) {
    if (small[i - missing] != 1 && small[i - missing] != shape[i]) return false;
  }
  return true;
}

// Where the row of `small` for a row of `shape` (rank >= 1) begins: strides of the leading axes, 0 where broadcast.
class BroadcastRows {
 public:
  BroadcastRows(const Shape& shape, const Shape& small) : leading_(shape.rank() - 1) {
    const int missing = shape.rank() - small.rank();
    int64_t stride = 1;
    for (int axis = leading_; axis >= 0; --axis) {
      const int64_t size = axis < missing ? 1 : small[axis - missing];
      if (axis == leading_) {
        column_stride_ = size == 1 ? 0 : 1;
      } else {
        sizes_[axis] = shape[axis];
        strides_[axis] = size == 1 ? 0 : stride;
      }
      stride *= size;
    }
  }
  int64_t Offset(int64_t row) const {
    int64_t offset = 0;
    for (int axis = leading_ - 1; axis >= 0; --axis) {
      offset += row % sizes_[axis] * strides_[axis];
      row /= sizes_[axis];
    }
    return offset;
  }
  int64_t column_stride() const { return column_stride_; }

 private:
  int leading_;
  int64_t sizes_[Shape::kMaxRank] = {}, strides_[Shape::kMaxRank] = {};
  int64_t column_stride_ = 0;
};

}  // namespace npu
