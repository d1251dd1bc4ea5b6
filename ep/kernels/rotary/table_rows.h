// The rows of a cos or sin table that correspond to the rows of the tensor that they rotate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ep/kernels/broadcast_rows.h"
#include "ep/kernels/row_block.h"

namespace npu {

// Full-width rows of floats, whatever the table's dtype and width. A row that serves several consecutive heads is
// converted once.
template <class T>
class TableRows {
 public:
  TableRows(const T* table, const Shape& table_shape, const Shape& x_shape)
      : table_(table),
        rows_(table_shape, x_shape),
        width_(x_shape.back()),
        is_scalar_(table_shape.rank() == 0 || (table_shape.back() == 1 && width_ != 1)),
        scratch_(width_) {}

  void Seek(int64_t row) { rows_.Seek(row); }
  void Next() { rows_.Next(); }
  const float* Row() {
    const T* source = table_ + rows_.offset();
    if (source == source_) return values_;
    source_ = source;
    if (is_scalar_) {
      std::fill_n(scratch_.values(), width_, ToFloat(*source));
      values_ = scratch_.values();
    } else if constexpr (std::is_same_v<T, float>) {
      values_ = source;
    } else {
      ToFloat(source, scratch_.values(), width_);
      values_ = scratch_.values();
    }
    return values_;
  }

 private:
  const T* table_;
  BroadcastRows rows_;
  int64_t width_;
  bool is_scalar_;  // one value is broadcast over the whole row
  RowScratch scratch_;
  const T* source_ = nullptr;
  const float* values_ = nullptr;
};

}  // namespace npu
