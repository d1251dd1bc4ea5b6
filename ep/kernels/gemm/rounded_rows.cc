#include "ep/kernels/gemm/rounded_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/elements.h"
#include "ep/kernels/gemm/round_group.h"
#include "ep/kernels/gemm/strided_floats.h"

namespace npu::gemm {

namespace {

// Integers that are rounded, or copied, before they are stored; a multiple of every unit.
constexpr int64_t kBlock = kMostRounded;
constexpr int64_t kGrainBytes = 32 << 10;  // less of A costs more in waking a thread than it saves

}  // namespace

// `at`: a multiple of the unit, which a constant number of bytes makes one store.
template <int64_t kUnitBytes>
void RowRounding::Place::StoreUnits(int64_t at, const void* integers, int64_t count) const {
  const auto* from = static_cast<const int8_t*>(integers);
  int8_t* to = data + at / unit * step;
  for (; count >= unit; count -= unit, from += kUnitBytes, to += step) std::memcpy(to, from, kUnitBytes);
  if (count <= 0) return;
  const int64_t left = count * bytes;
  std::memcpy(to, from, static_cast<size_t>(left));
  std::memset(to + left, 0, static_cast<size_t>(kUnitBytes - left));
}

// At most kBlock integers.
void RowRounding::Place::Store(int64_t at, const int8_t* integers, int64_t count) const {
  if (bytes == 2) {
    alignas(64) int16_t words[kBlock];
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) words[j] = integers[j];
    return StoreUnits<8>(at, words, count);
  }
  unit == 4 ? StoreUnits<4>(at, integers, count) : StoreUnits<64>(at, integers, count);
}

RowRounding::RowRounding(DType dtype, const Matrix& a, int64_t group, int32_t zero_point, SliverOrder order,
                         AlignedBuffer& memory)
    : dtype_(dtype),
      a_(a),
      group_(group),
      zero_point_(zero_point),
      order_(order),
      memory_(memory),
      integers_(kIntegerOperands.Contains(dtype)),
      ones_(zero_point != 0 ? 1 : 0),
      groups_((a.columns - 1) / group + 1),
      group_units_((std::min(group, a.columns) - 1) / order.unit + 1),
      depth_(BeginOf(groups_ - 1) + ((a.columns - (groups_ - 1) * group - 1) / order.unit + 1) * order.unit) {}

int64_t RowRounding::EndOf(int64_t g) const { return std::min(a_.columns, (g + 1) * group_); }

// Slivers of fours are as long as they have rows; a unit of tiles is always whole.
int64_t RowRounding::StoredRows(int64_t sliver) const {
  const int64_t left = rows_ - sliver * sliver_rows();
  return left < sliver_rows() && order_.unit == 4 ? left + ones_ : order_.rows;
}

void RowRounding::StoreBlock(int64_t m0, int64_t rows) {
  rows_ = rows;
  slots_ = slivers() * order_.rows;
  const int64_t value_bytes = slots_ * depth_ * order_.bytes;
  values_ = static_cast<int8_t*>(memory_.Reserve((value_bytes + 63) / 64 * 64 + slots_ * groups_ * 8));
  scales_ = reinterpret_cast<float*>(values_ + (value_bytes + 63) / 64 * 64);
  sums_ = reinterpret_cast<int32_t*>(scales_ + slots_ * groups_);
  ParallelFor(rows, std::max<int64_t>(1, kGrainBytes / (4 * depth_)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      integers_ ? CopyRow(m0, i) : RoundRow(m0, i);
      const bool last = i % sliver_rows() == sliver_rows() - 1 || i == rows - 1;
      if (ones_ != 0 && last) StoreOnes(SlotOf(i) + 1, PlaceOf(i));
    }
  });
}

RowRounding::Place RowRounding::PlaceOf(int64_t i) const {
  const int64_t sliver = i / sliver_rows(), in_sliver = i % sliver_rows();
  const int64_t unit_bytes = order_.unit * order_.bytes;
  return {values_ + sliver * order_.rows * depth_ * order_.bytes + unit_bytes * in_sliver,
          unit_bytes * StoredRows(sliver), order_.unit, order_.bytes};
}

// Row m0 + i of an A of integers as row i of the block.
void RowRounding::CopyRow(int64_t m0, int64_t i) {
  alignas(64) int8_t copied[kBlock];
  const Place to = PlaceOf(i);
  const int64_t slot = SlotOf(i);
  WithElements(dtype_, a_, a_.Offset(m0 + i, 0), [&](auto from) {
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t begin = g * group_, end = EndOf(g);
      int32_t sum = 0;
      for (int64_t k = begin; k < end; k += kBlock) {
        const int64_t count = std::min(kBlock, end - k);
        for (int64_t j = 0; j < count; ++j) copied[j] = static_cast<int8_t>(from[(k + j) * a_.column_stride]);
        for (int64_t j = 0; j < count; ++j) sum += copied[j];
        to.Store(BeginOf(g) + k - begin, copied, count);
      }
      scales_[g * slots_ + slot] = 1.0f;
      sums_[g * slots_ + slot] = sum;
    }
  });
}

// The row after the one at `before`.
void RowRounding::StoreOnes(int64_t slot, Place before) {
  alignas(64) int8_t ones[kBlock];
  std::fill_n(ones, kBlock, int8_t{1});
  const Place to{before.data + before.unit * before.bytes, before.step, before.unit, before.bytes};
  for (int64_t g = 0; g < groups_; ++g) {
    const int64_t begin = g * group_, end = EndOf(g);
    for (int64_t k = begin; k < end; k += kBlock) to.Store(BeginOf(g) + k - begin, ones, std::min(kBlock, end - k));
    scales_[g * slots_ + slot] = 1.0f;
    sums_[g * slots_ + slot] = static_cast<int32_t>(end - begin);
  }
}

// Row m0 + i of an A of floats as row i of the block.
void RowRounding::RoundRow(int64_t m0, int64_t i) {
  alignas(64) int8_t rounded[kBlock];
  const Place to = PlaceOf(i);
  const int64_t slot = SlotOf(i);
  const float* row = LoadRow(m0 + i);
  const bool fours = order_.unit == 4 && order_.bytes == 1;
  for (int64_t g = 0; g < groups_; ++g) {
    const int64_t begin = g * group_, end = EndOf(g);
    WithCount(end - begin, [&](auto values) {
      const float magnitude = std::bit_cast<float>(GroupMagnitudeBits(row + begin, values));
      const float factor = magnitude == 0.0f ? 0.0f : 127.0f / magnitude;
      int32_t sum = 0;
      if (fours) {
        int8_t* const first = to.data + BeginOf(g) / 4 * to.step;
        sum = RoundFours(row + begin, values, factor, order_.shift, first, to.step);
      } else {
        for (int64_t k = begin; k < end; k += kBlock) {
          const int64_t count = std::min(kBlock, end - k);
          sum += RoundGroup(row + k, count, factor, /*shift=*/0, rounded);
          to.Store(BeginOf(g) + k - begin, rounded, count);
        }
      }
      scales_[g * slots_ + slot] = magnitude / 127.0f;
      sums_[g * slots_ + slot] = sum;
    });
  }
}

// A row of A as floats, until this thread loads another.
const float* RowRounding::LoadRow(int64_t row) const {
  static thread_local AlignedBuffer floats;
  float* out = static_cast<float*>(floats.Reserve(a_.columns * 4));
  DispatchFloats("Gemm", dtype_, [&](auto type) {
    LoadFloats(static_cast<const decltype(type)*>(a_.data) + a_.Offset(row, 0), a_.column_stride, a_.columns, out);
  });
  return out;
}

}  // namespace npu::gemm
