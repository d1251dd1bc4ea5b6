// Rows of a tensor that broadcasts to another one, in the order of the other's rows.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

// Maps each row (all axes but the last) of `shape`, of rank >= 1, to the element offset of the row that NumPy
// broadcasting assigns to it in a table of shape `table`. Requires Fits().
class BroadcastRows {
 public:
  // False when `table` does not broadcast to `shape` without changing it.
  static bool Fits(const Shape& table, const Shape& shape) {
    const int missing = shape.rank() - table.rank();
    if (missing < 0) return false;
    for (int i = 0; i < table.rank(); ++i)
      if (table[i] != 1 && table[i] != shape[missing + i]) return false;
    return true;
  }

  BroadcastRows(const Shape& table, const Shape& shape) : axes_(shape.rank() - 1) {
    const int missing = shape.rank() - table.rank();
    int64_t stride = table.rank() == 0 ? 1 : table.back();
    column_stride_ = stride == 1 ? 0 : 1;
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      dims_[axis] = shape[axis];
      const int64_t size = axis >= missing ? table[axis - missing] : 1;
      strides_[axis] = size == 1 ? 0 : stride;
      stride *= size;
    }
  }

  // The offset for any row.
  int64_t OffsetOf(int64_t row) const {
    int64_t offset = 0;
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      offset += row % dims_[axis] * strides_[axis];
      row /= dims_[axis];
    }
    return offset;
  }
  // The stride between elements of a table row: 0 if one element is broadcast.
  int64_t column_stride() const { return column_stride_; }

  // Seeks to a row; Next moves to the following one, which is cheaper than OffsetOf for each.
  void Seek(int64_t row) {
    offset_ = OffsetOf(row);
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      place_[axis] = row % dims_[axis];
      row /= dims_[axis];
    }
  }
  void Next() {
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      offset_ += strides_[axis];
      if (++place_[axis] < dims_[axis]) return;
      offset_ -= strides_[axis] * dims_[axis];
      place_[axis] = 0;
    }
  }
  int64_t offset() const { return offset_; }

 private:
  int axes_ = 0;
  int64_t offset_ = 0, column_stride_ = 1;
  int64_t dims_[Shape::kMaxRank] = {}, strides_[Shape::kMaxRank] = {}, place_[Shape::kMaxRank] = {};
};

}  // namespace npu
