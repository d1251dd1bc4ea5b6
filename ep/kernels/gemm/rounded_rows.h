// Rows of A as int8, in the order in which products of integers read them: integers copied, or floats rounded with a
// scale for each row and group of K.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/gemm.h"

namespace npu::gemm {

// Slivers of `rows` rows, one after the other. In a sliver `unit` integers of a row follow those of the row before: its
// values are [units of K][rows][unit]. Zeros complete the last unit of each group. An integer takes one byte, or two;
// `shift` is added to those of rounded rows in units of four bytes, also to the zeros.
struct SliverOrder {
  int64_t rows = 0, unit = 0;
  int64_t bytes = 1;
  int shift = 0;
};

struct RoundedRows {
  const int8_t* values = nullptr;  // words, where an integer takes two bytes
  const float* scales = nullptr;   // of the row in group g at g * `stride`, after it those of the rows behind it
  const int32_t* sums = nullptr;   // of the integers of a row and group, likewise
  int64_t rows = 0;                // with the row of ones, if there is one
  int64_t stride = 0;
  int64_t depth = 0;              // integers of a row, with zeros
  int64_t groups = 0, group = 0;  // of K
  // A was integers: scales are 1, and every operation is rounded by itself, as in the reference of an operator.
  bool integers = false;
  // Subtracted from integers; unless it is 0, the last row of a sliver has ones, and no result.
  int32_t zero_point = 0;

  int64_t results() const { return rows - (zero_point != 0 ? 1 : 0); }
};

// A block of rows of A at a time.
class RowRounding {
 public:
  // `group`: rows of K that share a scale.
  RowRounding(DType dtype, const Matrix& a, int64_t group, int32_t zero_point, SliverOrder order,
              AlignedBuffer& memory);

  // Stores rows [m0, m0 + rows) of A in place of the block before.
  void StoreBlock(int64_t m0, int64_t rows);

  int64_t slivers() const { return (rows_ - 1) / sliver_rows() + 1; }
  int64_t sliver_rows() const { return order_.rows - ones_; }  // of A
  int64_t columns() const { return a_.columns; }
  bool integers() const { return integers_; }
  RoundedRows Sliver(int64_t index) const {
    const int64_t slot = index * order_.rows;
    return {.values = values_ + slot * depth_ * order_.bytes,
            .scales = scales_ + slot,
            .sums = sums_ + slot,
            .rows = std::min(sliver_rows(), rows_ - index * sliver_rows()) + ones_,
            .stride = slots_,
            .depth = depth_,
            .groups = groups_,
            .group = group_,
            .integers = integers_,
            .zero_point = zero_point_};
  }

 private:
  struct Groups {
    int64_t begin, end;
  };
  // Where a row has its integers.
  struct Place {
    int8_t* data;
    int64_t step;   // between units, in bytes
    int64_t unit;   // integers
    int64_t bytes;  // of an integer

    void Store(int64_t at, const int8_t* integers, int64_t count) const;
    template <int64_t kUnitBytes>
    void StoreUnits(int64_t at, const void* integers, int64_t count) const;
  };

  // The position of row i of the block among the rows in memory: a row of ones may end each sliver.
  int64_t SlotOf(int64_t i) const { return i / sliver_rows() * order_.rows + i % sliver_rows(); }
  int64_t StoredRows(int64_t sliver) const;
  Place PlaceOf(int64_t i) const;
  void StoreSliver(int64_t m0, int64_t sliver, Groups groups);
  void CopyRow(int64_t m0, int64_t i, Groups groups);
  void RoundRow(int64_t m0, int64_t i, Groups groups);
  bool RoundFourRows(int64_t m0, int64_t i, Groups groups);
  void StoreOnes(int64_t slot, Place before, Groups groups);
  const float* LoadRow(int64_t row, int64_t first, int64_t count) const;
  // Where group g begins in a row with zeros.
  int64_t BeginOf(int64_t g) const { return g * group_units_ * order_.unit; }
  int64_t EndOf(int64_t g) const;

  DType dtype_;
  Matrix a_;
  int64_t group_;
  int32_t zero_point_;
  SliverOrder order_;
  AlignedBuffer& memory_;
  bool integers_;
  int64_t ones_, groups_, group_units_, depth_;
  int64_t rows_ = 0, slots_ = 0;  // of the block
  int8_t* values_ = nullptr;
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;
};

}  // namespace npu::gemm
