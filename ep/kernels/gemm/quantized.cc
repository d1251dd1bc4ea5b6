#include "ep/kernels/gemm/quantized.h"

#include <algorithm>
#include <cstring>

#include "ep/kernels/convert.h"
#include "ep/kernels/float16_rounding.h"
#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/stored_row.h"
#include "ep/kernels/gemm/strided_floats.h"
#include "ep/runtime/isa.h"

namespace npu::gemm {

namespace {

// Stored rows that are computed before they are rounded: they stay in the first-level cache.
constexpr int64_t kBlockRows = 8;

// values = element + offset of `rows` stored rows, and times the scale unless it is null.
template <int bits, bool has_offset>
void DequantizeRows(const uint8_t* stored, int64_t begin, int64_t rows, const float* offset, const float* scale,
                    float* values) {
  constexpr int kVectors = kStoredElements / kLanes;
  Vec offsets[kVectors], scales[kVectors];
  std::memcpy(offsets, offset, sizeof(offsets));
  if (scale) std::memcpy(scales, scale, sizeof(scales));
  for (int64_t row = begin; row < begin + rows; ++row) {
    __builtin_prefetch(stored + row * kStoredElements * bits / 8 + kStoredPrefetchBytes);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      // The element itself first: then the sum with the offset is rounded but once.
      Vec value = LoadStored<bits>(stored, row, i * kLanes);
      if constexpr (has_offset) value += offsets[i];
      if (scale) value *= scales[i];
      std::memcpy(values + (row - begin) * kStoredElements + i * kLanes, &value, sizeof(value));
    }
  }
}

#if defined(__AVX512F__)
// The same, times the scale and rounded to bfloat16: a stored row is a row of pairs as it stands.
template <int bits, bool has_offset>
__attribute__((target("avx512bf16"))) void DequantizeRowsToBf16(const uint8_t* stored, int64_t begin, int64_t rows,
                                                                const float* offset, const float* scale,
                                                                BFloat16* out) {
  constexpr int kVectors = kStoredElements / kLanes;
  __m512 offsets[kVectors], scales[kVectors];
  std::memcpy(offsets, offset, sizeof(offsets));
  std::memcpy(scales, scale, sizeof(scales));
  for (int64_t row = begin; row < begin + rows; ++row, out += kStoredElements) {
    __builtin_prefetch(stored + row * kStoredElements * bits / 8 + kStoredPrefetchBytes);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; i += 2) {
      __m512 low = (__m512)LoadStored<bits>(stored, row, i * kLanes);
      __m512 high = (__m512)LoadStored<bits>(stored, row, (i + 1) * kLanes);
      if constexpr (has_offset) {
        low += offsets[i];
        high += offsets[i + 1];
      }
      _mm512_storeu_si512(out + i * kLanes, (__m512i)_mm512_cvtne2ps_pbh(high * scales[i + 1], low * scales[i]));
    }
  }
}
#endif

// Stored rows of floats, interleaved, as rows of a float32 panel.
void Deinterleave(const float* values, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < kPanelColumns; ++j) out[r * kPanelColumns + j] = values[2 * j + r];
}

}  // namespace

PanelFormat ExpandedFormat(DType dtype) {
  const PanelFormat format = FormatOf(dtype);
  return format == PanelFormat::kFloat16 ? PanelFormat::kFloat32 : format;
}

void PanelExpander::LoadScales(int64_t n0, int64_t columns, int64_t first_group, int64_t second_group) {
  DispatchFloats("Gemm", from_.dtype, [&](auto type) {
    using T = decltype(type);
    const auto load_pairs = [&](const void* data, int64_t panel, float* out) {
      if (!data) return;
      const auto load = [&](int64_t group, float (&values)[kPanelColumns]) {
        const auto from = GroupValues<T>::At(from_, data, panel, group, n0);
        LoadFloats(from.data, from.stride, columns, values);
      };
      float first[kPanelColumns] = {}, second[kPanelColumns] = {};
      load(first_group, first);
      if (second_group != first_group) load(second_group, second);
      const float* other = second_group == first_group ? first : second;
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        out[2 * j] = first[j];
        out[2 * j + 1] = other[j];
      }
    };
    load_pairs(from_.scale, from_.scale_panel, scale_);
    load_pairs(from_.offset, from_.offset_panel, offset_);
  });
}

bool PanelExpander::Multiplies(DType dtype, int bits, const Dequantization& from, int64_t rows, int64_t depth) {
  return dtype == DType::kBFloat16 && depth % 2 == 0 && from.group % 2 == 0 &&
         SelectStoredDot(bits, from.offset != nullptr, rows) != nullptr;
}

void PanelExpander::Multiply(const Sliver& a, int64_t rows, const void* stored, int64_t n0, int64_t columns, int64_t k0,
                             int64_t depth, float* tile) {
  const StoredDotFunction dot = SelectStoredDot(bits_, from_.offset != nullptr, rows);
  const int64_t group = from_.group == 0 ? k0 + depth : from_.group;
  for (int64_t k = k0; k < k0 + depth;) {
    const int64_t end = std::min(k0 + depth, (k / group + 1) * group);
    LoadScales(n0, columns, k / group, k / group);
    dot(a, static_cast<const uint8_t*>(stored), (k - k0) / 2, (end - k0) / 2, offset_, scale_, tile);
    k = end;
  }
}

// Rows of one pair of groups into floats, rounded where float16 rounds the sum and the product.
void PanelExpander::Dequantize(const uint8_t* stored, int64_t begin, int64_t rows, float* values) const {
  const bool halves = dtype_ == DType::kFloat16;
  const auto dequantize = [&](auto function) {
    function(stored, begin, rows, offset_, halves ? nullptr : scale_, values);
  };
  if (bits_ == 8) {
    from_.offset ? dequantize(DequantizeRows<8, true>) : dequantize(DequantizeRows<8, false>);
  } else {
    from_.offset ? dequantize(DequantizeRows<4, true>) : dequantize(DequantizeRows<4, false>);
  }
  if (!halves) return;
  const int64_t elements = rows * kStoredElements;
  if (from_.offset) RoundToFloat16<kBlockRows * kStoredElements>(values, elements);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < kStoredElements; ++i) values[r * kStoredElements + i] *= scale_[i];
  RoundToFloat16<kBlockRows * kStoredElements>(values, elements);
}

// The same into rows of pairs of bfloat16, by the native instruction; false if there is none.
bool PanelExpander::DequantizeToBf16(const uint8_t* stored, int64_t begin, int64_t rows, BFloat16* out) const {
#if defined(__AVX512F__)
  static const bool available = Features().avx512_bf16;
  if (!available) return false;
  const auto dequantize = [&](auto function) { function(stored, begin, rows, offset_, scale_, out); };
  if (bits_ == 8) {
    from_.offset ? dequantize(DequantizeRowsToBf16<8, true>) : dequantize(DequantizeRowsToBf16<8, false>);
  } else {
    from_.offset ? dequantize(DequantizeRowsToBf16<4, true>) : dequantize(DequantizeRowsToBf16<4, false>);
  }
  return true;
#else
  static_cast<void>(stored), static_cast<void>(begin), static_cast<void>(rows), static_cast<void>(out);
  return false;
#endif
}

void PanelExpander::Expand(const void* stored, int64_t n0, int64_t columns, int64_t k0, int64_t depth, void* out) {
  const auto* bytes = static_cast<const uint8_t*>(stored);
  const PanelFormat format = ExpandedFormat(dtype_);
  const int64_t rows = (depth + 1) / 2;
  const int64_t last = k0 + depth - 1;
  const int64_t group = from_.group == 0 ? last + 1 : from_.group;
  int64_t first_group = -1, second_group = -1;
  alignas(64) float block[kBlockRows * kStoredElements];
  auto* pairs = static_cast<uint16_t*>(out);
  auto* floats = static_cast<float*>(out);
  for (int64_t begin = 0; begin < rows;) {
    const int64_t k = k0 + 2 * begin;
    const int64_t first = k / group, second = std::min(k + 1, last) / group;
    if (first != first_group || second != second_group) LoadScales(n0, columns, first, second);
    first_group = first;
    second_group = second;
    // A row of two groups stands alone; else all up to the end of the group, in which the last may have one row of B.
    const int64_t in_group = first == second ? std::max<int64_t>(1, ((first + 1) * group - k) / 2) : 1;
    // The last row of B may be half of a stored row; the other half becomes zeros.
    const bool half = begin + in_group >= rows && depth % 2 != 0;
    if (format == PanelFormat::kPairs && first == second && !half) {
      const int64_t whole = std::min(rows - begin, in_group);
      if (DequantizeToBf16(bytes, begin, whole, reinterpret_cast<BFloat16*>(pairs + begin * kStoredElements))) {
        begin += whole;
        continue;
      }
    }
    const int64_t count = std::min({kBlockRows, rows - begin, in_group});
    Dequantize(bytes, begin, count, block);
    if (begin + count == rows && depth % 2 != 0) {
      float* values = block + (count - 1) * kStoredElements;
      for (int64_t j = 0; j < kPanelColumns; ++j) values[2 * j + 1] = 0.0f;
    }
    const int64_t elements = count * kStoredElements;
    if (format == PanelFormat::kPairs) {
      auto* to = reinterpret_cast<BFloat16*>(pairs + begin * kStoredElements);
      if (!RoundRowsToBf16(block, 2 * count, to, kPanelColumns)) FromFloat(block, to, elements);
    } else if (format == PanelFormat::kPairsFloat16) {
      FromFloat(block, reinterpret_cast<Float16*>(pairs + begin * kStoredElements), elements);
    } else {
      for (int64_t r = 0; r < count; ++r) {
        const int64_t row = begin + r;
        Deinterleave(block + r * kStoredElements, std::min<int64_t>(2, depth - 2 * row),
                     floats + 2 * row * kPanelColumns);
      }
    }
    begin += count;
  }
  if (format != PanelFormat::kFloat32) {
    const int64_t stored_rows = PaddedDepth(format, depth) / 2;
    std::fill(pairs + rows * kStoredElements, pairs + stored_rows * kStoredElements, uint16_t{0});
  }
}

}  // namespace npu::gemm
