#include "ep/kernels/gemm/rounded_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/elements.h"
#include "ep/kernels/gemm/round_four_rows.h"
#include "ep/kernels/gemm/round_group.h"
#include "ep/kernels/gemm/strided_floats.h"

namespace npu::gemm {

namespace {

// Integers that are rounded, or copied, before they are stored; a multiple of every unit.
constexpr int64_t kBlock = kMostRounded;
constexpr int64_t kGrainBytes = 32 << 10;  // less of A costs more in waking a thread than it saves
constexpr int64_t kPieceBytes = 16 << 10;  // of A, that a thread stores at a time

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
  // In pieces of whole slivers, whose rows have integers in the same cache lines: threads that store different rows of
  // a sliver wait for each other's lines.
  const int64_t group_bytes = 4 * std::min(rows, sliver_rows()) * group_units_ * order_.unit;
  const int64_t some = (kPieceBytes - 1) / group_bytes + 1, pieces = (groups_ - 1) / some + 1;
  const int64_t piece_bytes = some * group_bytes;
  ParallelFor(pieces * slivers(), std::max<int64_t>(1, kGrainBytes / piece_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first_group = piece / slivers() * some;
      StoreSliver(m0, piece % slivers(), {first_group, std::min(groups_, first_group + some)});
    }
  });
}

void RowRounding::StoreSliver(int64_t m0, int64_t sliver, Groups groups) {
  const int64_t begin = sliver * sliver_rows(), end = std::min(rows_, begin + sliver_rows());
  int64_t i = begin;
  if (!integers_)
    while (i + 4 <= end && RoundFourRows(m0, i, groups)) i += 4;
  for (; i < end; ++i) integers_ ? CopyRow(m0, i, groups) : RoundRow(m0, i, groups);
  if (ones_ != 0) StoreOnes(SlotOf(end - 1) + 1, PlaceOf(end - 1), groups);
}

RowRounding::Place RowRounding::PlaceOf(int64_t i) const {
  const int64_t sliver = i / sliver_rows(), in_sliver = i % sliver_rows();
  const int64_t unit_bytes = order_.unit * order_.bytes;
  return {values_ + sliver * order_.rows * depth_ * order_.bytes + unit_bytes * in_sliver,
          unit_bytes * StoredRows(sliver), order_.unit, order_.bytes};
}

// Row m0 + i of an A of integers as row i of the block.
void RowRounding::CopyRow(int64_t m0, int64_t i, Groups groups) {
  alignas(64) int8_t copied[kBlock];
  const Place to = PlaceOf(i);
  const int64_t slot = SlotOf(i);
  WithElements(dtype_, a_, a_.Offset(m0 + i, 0), [&](auto from) {
    for (int64_t g = groups.begin; g < groups.end; ++g) {
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
void RowRounding::StoreOnes(int64_t slot, Place before, Groups groups) {
  alignas(64) int8_t ones[kBlock];
  std::fill_n(ones, kBlock, int8_t{1});
  const Place to{before.data + before.unit * before.bytes, before.step, before.unit, before.bytes};
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t begin = g * group_, end = EndOf(g);
    for (int64_t k = begin; k < end; k += kBlock) to.Store(BeginOf(g) + k - begin, ones, std::min(kBlock, end - k));
    scales_[g * slots_ + slot] = 1.0f;
    sums_[g * slots_ + slot] = static_cast<int32_t>(end - begin);
  }
}

// Row m0 + i of an A of floats as row i of the block.
void RowRounding::RoundRow(int64_t m0, int64_t i, Groups groups) {
  alignas(64) int8_t rounded[kBlock];
  const Place to = PlaceOf(i);
  const int64_t slot = SlotOf(i);
  const int64_t first = groups.begin * group_;
  const float* row = LoadRow(m0 + i, first, EndOf(groups.end - 1) - first);
  const bool fours = order_.unit == 4 && order_.bytes == 1;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t begin = g * group_, end = EndOf(g);
    WithCount(end - begin, [&](auto values) {
      const float* const x = row + (begin - first);
      const float magnitude = std::bit_cast<float>(GroupMagnitudeBits(x, values));
      const float factor = magnitude == 0.0f ? 0.0f : 127.0f / magnitude;
      int32_t sum = 0;
      if (fours) {
        int8_t* const out = to.data + BeginOf(g) / 4 * to.step;
        sum = RoundFours(x, values, factor, order_.shift, out, to.step);
      } else {
        for (int64_t k = begin; k < end; k += kBlock) {
          const int64_t count = std::min(kBlock, end - k);
          sum += RoundGroup(x + (k - begin), count, factor, /*shift=*/0, rounded);
          to.Store(BeginOf(g) + k - begin, rounded, count);
        }
      }
      scales_[g * slots_ + slot] = magnitude / 127.0f;
      sums_[g * slots_ + slot] = sum;
    });
  }
}

// Rows m0 + i to m0 + i + 3 of an A of floats as rows of one sliver. False, and nothing is stored, where they are not
// in the order in which vectors round them.
bool RowRounding::RoundFourRows([[maybe_unused]] int64_t m0, [[maybe_unused]] int64_t i,
                                [[maybe_unused]] Groups groups) {
#if defined(__AVX512F__)
  if (order_.unit != 4 || order_.bytes != 1 || a_.column_stride != 1) return false;
  const Place to = PlaceOf(i);
  DispatchFloats("Gemm", dtype_, [&](auto type) {
    const auto* const x = static_cast<const decltype(type)*>(a_.data) + a_.Offset(m0 + i, 0);
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const int64_t begin = g * group_, count = EndOf(g) - begin, at = g * slots_ + SlotOf(i);
      int8_t* const out = to.data + BeginOf(g) / 4 * to.step;
      const bool rounded = WithCount(count, [&](auto values) {
        return values % 16 == 0 && gemm::RoundFourRows(x + begin, a_.row_stride, values, order_.shift, out, to.step,
                                                       scales_ + at, sums_ + at);
      });
      for (int64_t r = 0; r < 4 && !rounded; ++r) RoundRow(m0, i + r, {g, g + 1});
    }
  });
  return true;
#else
  return false;
#endif
}

// `count` elements of a row of A from `first` on as floats, until this thread loads others.
const float* RowRounding::LoadRow(int64_t row, int64_t first, int64_t count) const {
  static thread_local AlignedBuffer floats;
  float* out = static_cast<float*>(floats.Reserve(count * 4));
  DispatchFloats("Gemm", dtype_, [&](auto type) {
    LoadFloats(static_cast<const decltype(type)*>(a_.data) + a_.Offset(row, first), a_.column_stride, count, out);
  });
  return out;
}

}  // namespace npu::gemm
