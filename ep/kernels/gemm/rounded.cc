#include "ep/kernels/gemm/rounded.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/elements.h"
#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/gemm/quantized.h"
#include "ep/kernels/gemm/strided_floats.h"
#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu::gemm {

namespace {

// Rows of K that share a scale of A where B has one scale for all of them.
constexpr int64_t kGroup = 128;
// The same for an A of integers, whose scales are 1.
constexpr int64_t kIntegerGroup = 1 << 16;
// Rows of A that are multiplied with a panel in turn: they stay in the second-level cache.
constexpr int64_t kBlockRows = 128;
constexpr int64_t kGrainBytes = 32 << 10;  // less of A or B costs more in waking a thread than it saves

struct Scratch {
  AlignedBuffer a, panel, scales, tile;
};
thread_local Scratch scratch;

class RoundedProduct {
 public:
  RoundedProduct(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, const Result& c,
                 const Epilogue& epilogue, const Dequantization& from)
      : dtype_(dtype),
        a_(a),
        b_dtype_(b_dtype),
        b_(b),
        packed_b_(static_cast<const uint8_t*>(packed_b)),
        c_(c),
        epilogue_(epilogue),
        from_(from),
        bits_(BitsOf(b_dtype)),
        integers_(kIntegerOperands.Contains(dtype)),
        ones_(integers_ && from.a_zero_point != 0 ? 1 : 0),
        sliver_rows_(kRoundedRows - ones_),
        group_(from.group != 0 ? from.group
               : integers_     ? kIntegerGroup
                               : kGroup),
        groups_((a.columns - 1) / group_ + 1),
        depth_((a.columns + 3) / 4 * 4),
        dot_(SelectRoundedDot(bits_)) {
    // Sums of integers begin with what is added to each column, instead of ending with it.
    const Addend& addend = epilogue.addend;
    if (integers_ && addend.data && addend.row_stride == 0 && addend.scale == 1.0f)
      first_ = std::exchange(epilogue_.addend, {});
  }

  void Run() {
    const int64_t most = SlotOf(std::min(kBlockRows, a_.rows) - 1) + 1 + ones_;
    const int64_t row_bytes = depth_ + groups_ * 8;
    char* memory = static_cast<char*>(scratch.a.Reserve(most * row_bytes + 64));
    scales_ = reinterpret_cast<float*>(memory);
    sums_ = reinterpret_cast<int32_t*>(scales_ + most * groups_);
    values_ = reinterpret_cast<int8_t*>(sums_ + most * groups_);
    const int64_t panels = (b_.columns + kPanelColumns - 1) / kPanelColumns;
    const int64_t panel_bytes = QuantizedPanelBytes(bits_, a_.columns);
    for (int64_t m0 = 0; m0 < a_.rows; m0 += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, a_.rows - m0);
      ParallelFor(rows, std::max<int64_t>(1, kGrainBytes / (4 * depth_)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (integers_) {
            CopyRow(m0, i, rows);
          } else {
            RoundRow(m0, i, rows);
          }
          const bool last = i % sliver_rows_ == sliver_rows_ - 1 || i == rows - 1;
          if (ones_ != 0 && last) StoreOnes(SlotOf(i) + 1, PlaceOf(i, rows));
        }
      });
      ParallelFor(panels, std::max<int64_t>(1, kGrainBytes / (panel_bytes * rows)), [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) MultiplyPanel(m0, rows, p);
      });
    }
  }

 private:
  // Where a row has its integers.
  struct Place {
    int8_t* data;
    int64_t step;  // between fours

    // Stores `count` integers, and zeros that complete the last four, from row k of K on, which is a multiple of 4.
    void Store(int64_t k, int8_t* integers, int64_t count) const {
      for (int64_t j = count; j % 4 != 0; ++j) integers[j] = 0;
      for (int64_t j = 0; j < count; j += 4) std::memcpy(data + (k + j) / 4 * step, integers + j, 4);
    }
  };
  // The position of row i among the rows in memory: a row of ones may end each sliver.
  int64_t SlotOf(int64_t i) const { return i / sliver_rows_ * kRoundedRows + i % sliver_rows_; }
  // Of row i of `rows`.
  Place PlaceOf(int64_t i, int64_t rows) const {
    const int64_t in_sliver = i % sliver_rows_, begin = i - in_sliver;
    return {values_ + SlotOf(begin) * depth_ + 4 * in_sliver, 4 * (std::min(sliver_rows_, rows - begin) + ones_)};
  }

  // Row m0 + i of an A of integers as row i of `rows`.
  void CopyRow(int64_t m0, int64_t i, int64_t rows) {
    alignas(64) int8_t copied[kGroup];
    const Place to = PlaceOf(i, rows);
    const int64_t slot = SlotOf(i);
    WithElements(dtype_, a_, a_.Offset(m0 + i, 0), [&](auto from) {
      for (int64_t g = 0; g < groups_; ++g) {
        const int64_t begin = g * group_, end = std::min(a_.columns, begin + group_);
        int32_t sum = 0;
        for (int64_t k = begin; k < end; k += kGroup) {
          const int64_t count = std::min(kGroup, end - k);
          for (int64_t j = 0; j < count; ++j) copied[j] = static_cast<int8_t>(from[(k + j) * a_.column_stride]);
          for (int64_t j = 0; j < count; ++j) sum += copied[j];
          to.Store(k, copied, count);
        }
        scales_[slot * groups_ + g] = 1.0f;
        sums_[slot * groups_ + g] = sum;
      }
    });
  }

  // The row after the one at `before`.
  void StoreOnes(int64_t slot, Place before) {
    alignas(64) int8_t ones[kGroup];
    const Place to{before.data + 4, before.step};
    for (int64_t k = 0; k < a_.columns; k += kGroup) {
      const int64_t count = std::min(kGroup, a_.columns - k);
      std::fill_n(ones, count, int8_t{1});
      to.Store(k, ones, count);
    }
    for (int64_t g = 0; g < groups_; ++g) {
      scales_[slot * groups_ + g] = 1.0f;
      sums_[slot * groups_ + g] = static_cast<int32_t>(std::min(a_.columns - g * group_, group_));
    }
  }

  // Row m0 + i of an A of floats as row i of `rows`.
  void RoundRow(int64_t m0, int64_t i, int64_t rows) {
    alignas(64) float block[kGroup];
    alignas(64) int32_t whole[kGroup];
    alignas(64) int8_t rounded[kGroup];
    const Place to = PlaceOf(i, rows);
    const int64_t slot = SlotOf(i);
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t begin = g * group_, end = std::min(a_.columns, begin + group_);
      const int64_t blocks = (end - begin - 1) / kGroup + 1;
      const auto count_at = [&](int64_t k) { return std::min(kGroup, end - k); };
      uint32_t most = 0;
      for (int64_t k = begin; k < end; k += kGroup)
        most = MaxMagnitudeBits(Load(m0 + i, k, count_at(k), block), count_at(k), most);
      const float magnitude = std::bit_cast<float>(most);
      const float factor = magnitude == 0.0f ? 0.0f : 127.0f / magnitude;
      int32_t sum = 0;
      for (int64_t k = begin; k < end; k += kGroup) {
        const int64_t count = count_at(k);
        const float* x = blocks == 1 ? block : Load(m0 + i, k, count, block);
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) whole[j] = RoundSaturated(x[j] * factor, -128.0f, 127.0f);
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < count; ++j) sum += whole[j];
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) rounded[j] = static_cast<int8_t>(whole[j]);
        to.Store(k, rounded, count);
      }
      scales_[slot * groups_ + g] = magnitude / 127.0f;
      sums_[slot * groups_ + g] = sum;
    }
  }

  const float* Load(int64_t row, int64_t k, int64_t count, float* block) const {
    DispatchFloats("Gemm", dtype_, [&](auto type) {
      LoadFloats(static_cast<const decltype(type)*>(a_.data) + a_.Offset(row, k), a_.column_stride, count, block);
    });
    return block;
  }

  void MultiplyPanel(int64_t m0, int64_t rows, int64_t panel) {
    const int64_t n0 = panel * kPanelColumns, columns = std::min<int64_t>(kPanelColumns, b_.columns - n0);
    const int64_t panel_bytes = QuantizedPanelBytes(bits_, a_.columns);
    const uint8_t* stored = packed_b_ + panel * panel_bytes;
    if (!packed_b_) {
      uint8_t* packed = static_cast<uint8_t*>(scratch.panel.Reserve(panel_bytes));
      PackQuantizedPanel(b_dtype_, b_, panel, 0, a_.columns, packed);
      stored = packed;
    }
    // What the other columns of the last panel hold is not stored.
    const PanelScales scales = LoadScales(n0, columns);
    float* tile = static_cast<float*>(scratch.tile.Reserve(kRoundedRows * kPanelColumns * 4));
    for (int64_t i = 0; i < rows; i += sliver_rows_) {
      const int64_t slot = SlotOf(i), count = std::min(sliver_rows_, rows - i);
      const RoundedRows a{.values = values_ + slot * depth_,
                          .scales = scales_ + slot * groups_,
                          .sums = sums_ + slot * groups_,
                          .rows = count + ones_,
                          .depth = depth_,
                          .groups = groups_,
                          .group = group_,
                          .integers = integers_,
                          .zero_point = integers_ ? from_.a_zero_point : 0};
      dot_(a, stored, scales, tile);
      StoreTile({tile, count, columns, m0 + i, n0}, c_, epilogue_, nullptr);
    }
  }

  PanelScales LoadScales(int64_t n0, int64_t columns) const {
    const int64_t stored_groups = from_.group == 0 ? 1 : groups_;
    const int64_t half = stored_groups * kPanelColumns;
    float* out = static_cast<float*>(scratch.scales.Reserve((2 * half + kPanelColumns) * 4));
    DispatchFloats("Gemm", from_.dtype, [&](auto type) {
      using T = decltype(type);
      const auto load = [&](const void* data, int64_t panel, float* to) {
        for (int64_t g = 0; g < stored_groups; ++g, to += kPanelColumns) {
          const auto from = GroupValues<T>::At(from_, data, panel, g, n0);
          // The next panel's are not in the order in which memory is prefetched.
          if (panel == 0 && from.stride == 1 && n0 + 2 * kPanelColumns <= b_.columns)
            __builtin_prefetch(from.data + kPanelColumns);
          LoadFloats(from.data, from.stride, columns, to);
          std::fill(to + columns, to + kPanelColumns, 0.0f);
        }
      };
      load(from_.scale, from_.scale_panel, out);
      if (from_.offset) load(from_.offset, from_.offset_panel, out + half);
    });
    PanelScales scales{out, from_.offset ? out + half : nullptr, from_.group == 0 ? 0 : kPanelColumns};
    if (first_.data) {
      float* first = out + 2 * half;
      std::fill_n(first, kPanelColumns, 0.0f);
      DispatchFloats("Gemm", first_.dtype, [&](auto type) {
        const auto* from = static_cast<const decltype(type)*>(first_.data) + n0 * first_.column_stride;
        LoadFloats(from, first_.column_stride, columns, first);
      });
      scales.first = first;
    }
    return scales;
  }

  DType dtype_;
  Matrix a_;
  DType b_dtype_;
  Matrix b_;  // if B is packed, only its sizes are used
  const uint8_t* packed_b_;
  Result c_;
  Epilogue epilogue_;
  Dequantization from_;
  int bits_;
  bool integers_;                   // A has them
  int64_t ones_, sliver_rows_;      // rows of ones that end a sliver: 1 if there is a zero point of A
  int64_t group_, groups_, depth_;  // of K; the depth is a multiple of 4
  RoundedDotFunction dot_;
  Addend first_;
  // Of a block of rows of A.
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;
  int8_t* values_ = nullptr;
};

}  // namespace

bool MultipliesIntegers(DType dtype, const Dequantization& dequantization) {
  const bool rounds = dequantization.round_a && dequantization.group % 4 == 0;
  return dequantization.scale && (rounds || kIntegerOperands.Contains(dtype));
}

void MultiplyRounded(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b,
                     const Result& c, const Epilogue& epilogue, const Dequantization& dequantization) {
  RoundedProduct(dtype, a, b_dtype, b, packed_b, c, epilogue, dequantization).Run();
}

}  // namespace npu::gemm
