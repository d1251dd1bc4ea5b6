#include "ep/kernels/gemm/quantized.h"

#include <algorithm>
#include <cstring>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/elements.h"
#include "ep/kernels/gemm/epilogue.h"

namespace npu::gemm {

namespace {

// Stored rows that are computed before they are rounded: they stay in the first-level cache.
constexpr int64_t kBlockRows = 8;
constexpr int64_t kPrefetchBytes = 2048;

template <class Elements>
void FillStoredRows(const Elements& b, const Matrix& m, int bits, int64_t columns, int64_t depth, uint8_t* out) {
  std::memset(out, 0, static_cast<size_t>(QuantizedPanelBytes(bits, depth)));
  const auto put = [&](int64_t k, int64_t j) {
    const int value = b[m.Offset(k, j)];
    const int64_t row = k / 2, at = 2 * j + k % 2;
    if (bits == 8) {
      out[row * kStoredElements + at] = static_cast<uint8_t>(value);
    } else {
      out[row / 2 * kStoredElements + at] |= static_cast<uint8_t>((value + 8) << (row % 2 * 4));
    }
  };
  if (m.column_stride == 1) {
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < columns; ++j) put(k, j);
    return;
  }
  constexpr int64_t kTransposeRows = 128;  // their destination stays in the first-level cache
  for (int64_t begin = 0; begin < depth; begin += kTransposeRows)
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t k = begin; k < std::min(depth, begin + kTransposeRows); ++k) put(k, j);
}

// The elements of stored row `row`, plus 8 if they have 4 bits, as floats.
void LoadStoredRow(const uint8_t* stored, int bits, int64_t row, float* out) {
  if (bits == 8) {
    const int8_t* from = reinterpret_cast<const int8_t*>(stored) + row * kStoredElements;
    for (int64_t i = 0; i < kStoredElements; ++i) out[i] = from[i];
    return;
  }
  const uint8_t* from = stored + row / 2 * kStoredElements;
  if (row % 2 == 0) {
    for (int64_t i = 0; i < kStoredElements; ++i) out[i] = static_cast<float>(from[i] & 15);
  } else {
    for (int64_t i = 0; i < kStoredElements; ++i) out[i] = static_cast<float>(from[i] >> 4);
  }
}

void RoundToHalf(float* values, int64_t n) {
  Float16 halves[kStoredElements];
  FromFloat(values, halves, n);
  ToFloat(halves, values, n);
}

// Stored rows of floats, interleaved, as rows of a float32 panel.
void Deinterleave(const float* values, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < kPanelColumns; ++j) out[r * kPanelColumns + j] = values[2 * j + r];
}

}  // namespace

void PackQuantizedPanel(DType dtype, const Matrix& b, int64_t panel, int64_t k0, int64_t depth, void* out) {
  const int64_t j0 = panel * kPanelColumns;
  WithElements(dtype, b, b.Offset(k0, j0), [&](auto elements) {
    FillStoredRows(elements, b, BitsOf(dtype), std::min<int64_t>(kPanelColumns, b.columns - j0), depth,
                   static_cast<uint8_t*>(out));
  });
}

PanelFormat ExpandedFormat(DType dtype) {
  const PanelFormat format = FormatOf(dtype);
  return format == PanelFormat::kFloat16 ? PanelFormat::kFloat32 : format;
}

void PanelExpander::LoadScales(int64_t n0, int64_t columns, int64_t first_group, int64_t second_group) {
  const int64_t groups[2] = {first_group, second_group};
  std::fill(scale_, scale_ + kStoredElements, 0.0f);
  std::fill(offset_, offset_ + kStoredElements, 0.0f);
  DispatchFloats("Gemm", from_.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t r = 0; r < 2; ++r) {
      const int64_t at = groups[r] * from_.group_stride + n0 * from_.column_stride;
      const T* scale = static_cast<const T*>(from_.scale) + at;
      const T* offset = from_.offset ? static_cast<const T*>(from_.offset) + at : nullptr;
      for (int64_t j = 0; j < columns; ++j) {
        scale_[2 * j + r] = ToFloat(scale[j * from_.column_stride]);
        if (offset) offset_[2 * j + r] = ToFloat(offset[j * from_.column_stride]);
      }
    }
  });
}

void PanelExpander::Expand(const void* stored, int64_t n0, int64_t columns, int64_t k0, int64_t depth, void* out) {
  const auto* bytes = static_cast<const uint8_t*>(stored);
  const PanelFormat format = ExpandedFormat(dtype_);
  const int64_t rows = (depth + 1) / 2;
  const int64_t last = k0 + depth - 1;
  const int64_t group = from_.group == 0 ? last + 1 : from_.group;
  const float bias = bits_ == 4 ? 8.0f : 0.0f;
  int64_t first_group = -1, second_group = -1;
  alignas(64) float block[kBlockRows * kStoredElements];
  auto* pairs = static_cast<uint16_t*>(out);
  auto* floats = static_cast<float*>(out);
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - begin);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = begin + r, k = k0 + 2 * row;
      __builtin_prefetch(bytes + row * kStoredElements * bits_ / 8 + kPrefetchBytes);
      if (k / group != first_group || std::min(k + 1, last) / group != second_group) {
        first_group = k / group;
        second_group = std::min(k + 1, last) / group;
        LoadScales(n0, columns, first_group, second_group);
      }
      float* values = block + r * kStoredElements;
      LoadStoredRow(bytes, bits_, row, values);
      // The element itself first: then the sum with the offset is rounded but once.
      for (int64_t i = 0; i < kStoredElements; ++i) values[i] = (values[i] - bias) + offset_[i];
      if (dtype_ == DType::kFloat16) RoundToHalf(values, kStoredElements);
      for (int64_t i = 0; i < kStoredElements; ++i) values[i] *= scale_[i];
      if (k + 1 > last)
        for (int64_t j = 0; j < kPanelColumns; ++j) values[2 * j + 1] = 0.0f;
      if (dtype_ == DType::kFloat16) RoundToHalf(values, kStoredElements);
      if (format == PanelFormat::kFloat32)
        Deinterleave(values, std::min<int64_t>(2, last + 1 - k), floats + 2 * row * kPanelColumns);
    }
    const int64_t elements = count * kStoredElements;
    if (format == PanelFormat::kPairs) {
      auto* to = reinterpret_cast<BFloat16*>(pairs + begin * kStoredElements);
      if (!RoundRowsToBf16(block, 2 * count, to, kPanelColumns)) FromFloat(block, to, elements);
    } else if (format == PanelFormat::kPairsFloat16) {
      FromFloat(block, reinterpret_cast<Float16*>(pairs + begin * kStoredElements), elements);
    }
  }
  if (format != PanelFormat::kFloat32) {
    const int64_t stored_rows = PaddedDepth(format, depth) / 2;
    std::fill(pairs + rows * kStoredElements, pairs + stored_rows * kStoredElements, uint16_t{0});
  }
}

}  // namespace npu::gemm
