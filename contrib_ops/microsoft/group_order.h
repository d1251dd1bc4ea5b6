// The order in which MatMulNBits multiplies the rows of a weight whose groups g_idx assigns row by row, as GPTQ does
// with act_order: group after group, each padded to whole blocks, so that every block has one scale.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class GroupOrder {
 public:
  // In a launch: `groups` has the group of each of `rows` rows, from 0 to `group_count` - 1.
  GroupOrder(const char* op, const int32_t* groups, int64_t rows, int64_t group_count, int64_t block)
      : block_(block), group_count_(group_count) {
    const CheckedNumbers group_of(op, "g_idx", groups, 0, group_count);
    std::vector<std::vector<int32_t>> members(static_cast<size_t>(group_count));
    for (int64_t row = 0; row < rows; ++row)
      members[static_cast<size_t>(group_of[row])].push_back(static_cast<int32_t>(row));
    for (size_t group = 0; group < members.size(); ++group) {
      const std::vector<int32_t>& of_group = members[group];
      source_.insert(source_.end(), of_group.begin(), of_group.end());
      while (static_cast<int64_t>(source_.size()) % block != 0) source_.push_back(kPadding);
      while (blocks() > static_cast<int64_t>(group_of_block_.size()))
        group_of_block_.push_back(static_cast<int32_t>(group));
    }
  }

  int64_t rows() const { return static_cast<int64_t>(source_.size()); }
  int64_t blocks() const { return rows() / block_; }

  // The columns of A [count, width] in this order, with zeros as padding. In a launch.
  template <class T>
  void Columns(const T* a, int64_t count, int64_t width, T* to) const {
    ParallelFor(count, RowGrain(rows()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t k = 0; k < rows(); ++k) {
          const int32_t from = source_[static_cast<size_t>(k)];
          to[i * rows() + k] = from == kPadding ? T{} : a[i * width + from];
        }
      }
    });
  }

  // One line of 8-bit elements, or of 4-bit ones, two to a byte with the first in its lower half; zeros are padding.
  void Elements(const uint8_t* line, bool bytes, uint8_t* to) const {
    for (int64_t k = 0; k < rows(); ++k) {
      const int32_t from = source_[static_cast<size_t>(k)];
      if (bytes) {
        to[k] = from == kPadding ? uint8_t{0} : line[from];
        continue;
      }
      const int half = from == kPadding ? 0 : (line[from / 2] >> (from % 2 * 4)) & 15;
      to[k / 2] = static_cast<uint8_t>(k % 2 == 0 ? half : to[k / 2] | half << 4);
    }
  }

  // The values of blocks from those of groups, [lines, groups]. In a launch.
  template <class T>
  void BlockValues(const T* of_groups, int64_t lines, T* to) const {
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t b = 0; b < blocks(); ++b)
        to[line * blocks() + b] = of_groups[line * group_count_ + group_of_block_[static_cast<size_t>(b)]];
    }
  }

 private:
  static constexpr int32_t kPadding = -1;

  int64_t block_, group_count_;
  std::vector<int32_t> source_;          // of each row in this order
  std::vector<int32_t> group_of_block_;  // of each block
};

}  // namespace npu
