#include "ep/kernels/gemm/rounded.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/gemm/quantized.h"
#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/row_epilogue.h"
#include "ep/kernels/gemm/strided_floats.h"

namespace npu::gemm {

namespace {

// Rows of K that share a scale of A where B has one scale for all of them.
constexpr int64_t kGroup = 128;
// The same for an A of integers, whose scales are 1.
constexpr int64_t kIntegerGroup = 1 << 16;
// Rows of A that are multiplied with a panel in turn, which is unpacked for each block of them: as many as stay in the
// second-level cache, or kFewestRows.
constexpr int64_t kBlockBytes = 512 << 10;
constexpr int64_t kFewestRows = 128, kMostRows = 512;
// From so many rows on a B with small groups is multiplied as floats.
constexpr int64_t kRowsOfFloats = 64;
constexpr int64_t kGrainBytes = 32 << 10;  // less of B costs more in waking a thread than it saves

struct Scratch {
  AlignedBuffer a, panel, scales, multiplied, tiles;
};
thread_local Scratch scratch;

class RoundedProduct {
 public:
  RoundedProduct(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, const Result& c,
                 const Epilogue& epilogue, const Dequantization& from)
      : a_rows_(a.rows),
        b_dtype_(b_dtype),
        b_(b),
        packed_b_(static_cast<const uint8_t*>(packed_b)),
        c_(c),
        epilogue_(epilogue),
        from_(from),
        bits_(BitsOf(b_dtype)),
        group_(GroupOf(dtype, from)),
        multiply_(SelectRoundedBlock(bits_, a.rows, group_, kIntegerOperands.Contains(dtype))),
        dot_(SelectRoundedDot(bits_)),
        block_(dtype, a, group_, kIntegerOperands.Contains(dtype) ? from.a_zero_point : 0, multiply_.order, scratch.a) {
    // Sums of integers begin with what is added to each column, instead of ending with it.
    const Addend& addend = epilogue.addend;
    if (block_.integers() && addend.data && addend.row_stride == 0 && addend.scale == 1.0f)
      first_ = std::exchange(epilogue_.addend, {});
    to_rows_.emplace(c_, 0, epilogue_, nullptr);
  }

  void Run() {
    const int64_t panels = PanelCount(b_.columns);
    const int64_t panel_bytes = QuantizedPanelBytes(bits_, b_.rows);
    const int64_t block_rows = BlockRows();
    for (int64_t m0 = 0; m0 < a_rows_; m0 += block_rows) {
      const int64_t rows = std::min(block_rows, a_rows_ - m0);
      block_.StoreBlock(m0, rows);
      ParallelFor(panels, std::max<int64_t>(1, kGrainBytes / (panel_bytes * rows)), [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) MultiplyPanel(m0, p);
      });
    }
  }

 private:
  static int64_t GroupOf(DType dtype, const Dequantization& from) {
    if (from.group != 0) return from.group;
    return kIntegerOperands.Contains(dtype) ? kIntegerGroup : kGroup;
  }

  // Blocks of about the same size, of whole slivers but for the last.
  int64_t BlockRows() const {
    const int64_t row_bytes = b_.rows * multiply_.order.bytes, sliver = block_.sliver_rows();
    const int64_t most = std::clamp(kBlockBytes / row_bytes, kFewestRows, kMostRows);
    const int64_t blocks = (a_rows_ - 1) / most + 1, rows = (a_rows_ - 1) / blocks + 1;
    return (rows - 1) / sliver * sliver + sliver;
  }

  void MultiplyPanel(int64_t m0, int64_t panel) {
    const int64_t n0 = panel * kPanelColumns, columns = std::min<int64_t>(kPanelColumns, b_.columns - n0);
    const int64_t panel_bytes = QuantizedPanelBytes(bits_, b_.rows);
    const uint8_t* stored = packed_b_ + panel * panel_bytes;
    if (!packed_b_) {
      uint8_t* packed = static_cast<uint8_t*>(scratch.panel.Reserve(panel_bytes));
      PackQuantizedPanel(b_dtype_, b_, panel, 0, b_.rows, packed);
      stored = packed;
    }
    // What the other columns of the last panel hold is not stored.
    const PanelScales scales = LoadScales(n0, columns);
    const int64_t slivers = block_.slivers();
    const RoundedBlockFunction multiply = multiply_.function;
    const int64_t tile_elements = multiply_.order.rows * kPanelColumns;
    float* tiles = static_cast<float*>(scratch.tiles.Reserve((multiply ? slivers : 1) * tile_elements * 4));
    if (multiply) multiply(block_, stored, scales, scratch.multiplied, tiles);
    for (int64_t s = 0; s < slivers; ++s) {
      const RoundedRows a = block_.Sliver(s);
      float* tile = multiply ? tiles + s * tile_elements : tiles;
      if (!multiply) dot_(a, stored, scales, tile);
      to_rows_->Store({tile, a.results(), columns, m0 + s * block_.sliver_rows(), n0});
    }
  }

  // What the next panel reads, while this one is multiplied.
  static void PrefetchNext(const void* data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(data) + i);
  }

  PanelScales LoadScales(int64_t n0, int64_t columns) const {
    const int64_t stored_groups = from_.group == 0 ? 1 : (b_.rows - 1) / group_ + 1;
    const int64_t half = stored_groups * kPanelColumns;
    float* out = static_cast<float*>(scratch.scales.Reserve((2 * half + kPanelColumns) * 4));
    DispatchFloats("Gemm", from_.dtype, [&](auto type) {
      using T = decltype(type);
      const auto load = [&](const void* data, int64_t panel, float* to) {
        if (panel != 0) {  // packed: those of all groups lie side by side, whole panels
          const T* from = GroupValues<T>::At(from_, data, panel, 0, n0).data;
          LoadFloats(from, 1, half, to);
          PrefetchNext(from + half, half * static_cast<int64_t>(sizeof(T)));
          return;
        }
        for (int64_t g = 0; g < stored_groups; ++g, to += kPanelColumns) {
          const auto from = GroupValues<T>::At(from_, data, panel, g, n0);
          // The next panel's are not in the order in which memory is prefetched.
          if (from.stride == 1 && n0 + 2 * kPanelColumns <= b_.columns) __builtin_prefetch(from.data + kPanelColumns);
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

  int64_t a_rows_;
  DType b_dtype_;
  Matrix b_;  // if B is packed, only its sizes are used
  const uint8_t* packed_b_;
  Result c_;
  Epilogue epilogue_;
  Dequantization from_;
  int bits_;
  int64_t group_;  // of K
  RoundedBlock multiply_;
  RoundedDotFunction dot_;  // where blocks have no function
  RowRounding block_;
  Addend first_;
  std::optional<RowEpilogue> to_rows_;
};

}  // namespace

bool MultipliesIntegers(DType dtype, int64_t rows, const Dequantization& dequantization) {
  if (!dequantization.scale) return false;
  if (kIntegerOperands.Contains(dtype)) return true;
  const int64_t group = dequantization.group;
  if (!dequantization.round_a || group % 4 != 0) return false;
  // With tile registers, sums of small groups take longer to scale than B takes to dequantise for so many rows.
  const bool small = group >= kSmallestTileGroup && group < kGroup;
  return !(small && rows >= kRowsOfFloats && AmxKernel(dtype, FormatOf(dtype)) != nullptr);
}

void MultiplyRounded(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b,
                     const Result& c, const Epilogue& epilogue, const Dequantization& dequantization) {
  RoundedProduct(dtype, a, b_dtype, b, packed_b, c, epilogue, dequantization).Run();
}

}  // namespace npu::gemm
