// Each operation is rounded by itself, as in the reference of an operator that quantises: where a result is near the
// middle of two integers, a contracted multiply-add would choose another one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/gate.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu::gemm {

namespace {

// Sums of A - a_zero_point times B - b_zero_point, and the bias: the products of the zero points leave the sum over all
// of K. Integers wrap.
void Correct(const Tile& tile, const IntegerTerms& terms, const StoredIntegers& stored) {
  uint32_t* sums = reinterpret_cast<uint32_t*>(tile.sums);
  const auto at = [](const PerLine<int32_t>& line, int64_t i) {
    return line.data ? static_cast<uint32_t>(line.data[i * line.stride]) : 0u;
  };
  uint32_t b_zero[kPanelColumns] = {}, added[kPanelColumns] = {};
  for (int64_t j = 0; j < tile.columns; ++j) {
    b_zero[j] = at(terms.b_zero_point, tile.n0 + j) - static_cast<uint32_t>(stored.b_shift);
    added[j] = at(terms.bias, tile.n0 + j);
  }
  for (int64_t r = 0; r < tile.rows; ++r, sums += kPanelColumns) {
    const uint32_t a_zero = at(terms.a_zero_point, tile.m0 + r);
    const uint32_t of_column = a_zero + static_cast<uint32_t>(stored.a_shift);
    const uint32_t row_sum = stored.row_sums ? static_cast<uint32_t>(stored.row_sums[tile.m0 + r]) : 0u;
    const uint32_t of_b_zero = row_sum - static_cast<uint32_t>(stored.depth) * a_zero;
    for (int64_t j = 0; j < tile.columns; ++j)
      sums[j] += added[j] - of_column * static_cast<uint32_t>(tile.column_sums[j]) - b_zero[j] * of_b_zero;
  }
}

void ToFloats(const Tile& tile) {
  for (int64_t i = 0; i < tile.rows * kPanelColumns; ++i) {
    int32_t sum;
    std::memcpy(&sum, tile.sums + i, sizeof sum);
    tile.sums[i] = static_cast<float>(sum);
  }
}

// The share of zero points that are no integers: the row's sum times that of the column.
void SubtractFloatZeros(const Tile& tile, const PerLine<float>& zeros, const int32_t* row_sums) {
  if (!zeros.data || !row_sums) return;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const float row_sum = static_cast<float>(row_sums[tile.m0 + r]);
    float* sums = tile.sums + r * kPanelColumns;
    for (int64_t j = 0; j < tile.columns; ++j) sums[j] -= row_sum * zeros.data[(tile.n0 + j) * zeros.stride];
  }
}

// row[j] = f(row[j], line's value for column j)
template <class F>
void WithColumns(const Tile& tile, const PerLine<float>& line, const F& f) {
  float values[kPanelColumns] = {};
  for (int64_t j = 0; j < tile.columns; ++j) values[j] = line.data[(tile.n0 + j) * line.stride];
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t j = 0; j < kPanelColumns; ++j)
      tile.sums[r * kPanelColumns + j] = f(tile.sums[r * kPanelColumns + j], values[j]);
}

void ScaleRows(const Tile& tile, const PerLine<float>& rows) {
  for (int64_t r = 0; rows.data && r < tile.rows; ++r) {
    const float scale = rows.data[(tile.m0 + r) * rows.stride];
    for (int64_t j = 0; j < kPanelColumns; ++j) tile.sums[r * kPanelColumns + j] *= scale;
  }
}

void Scale(const Tile& tile, const Epilogue& epilogue) {
  if (epilogue.alpha != 1.0f)
    for (int64_t i = 0; i < tile.rows * kPanelColumns; ++i) tile.sums[i] *= epilogue.alpha;
  if (epilogue.column_scale.data)
    WithColumns(tile, epilogue.column_scale, [](float sum, float scale) { return sum * scale; });
  ScaleRows(tile, epilogue.row_scale);
}

// sums[j] += scale * addend[j * stride]
template <class T>
void AddRow(const T* addend, int64_t stride, float scale, int64_t columns, float* sums) {
  if (stride == 1) {
    float values[kPanelColumns];
    ToFloat(addend, values, columns);
    for (int64_t j = 0; j < columns; ++j) sums[j] += scale * values[j];
  } else if (stride == 0) {
    const float value = scale * ToFloat(*addend);
    for (int64_t j = 0; j < kPanelColumns; ++j) sums[j] += value;
  } else {
    for (int64_t j = 0; j < columns; ++j) sums[j] += scale * ToFloat(addend[j * stride]);
  }
}

void Add(const Tile& tile, const Addend& addend) {
  if (!addend.data) return;
  DispatchFloats("Gemm", addend.dtype, [&](auto type) {
    using T = decltype(type);
    const T* row = static_cast<const T*>(addend.data) + tile.m0 * addend.row_stride + tile.n0 * addend.column_stride;
    for (int64_t r = 0; r < tile.rows; ++r, row += addend.row_stride)
      AddRow(row, addend.column_stride, addend.scale, tile.columns, tile.sums + r * kPanelColumns);
  });
}

// Of a tile of a gate and its values, whose columns are kLanes of C.
template <class T>
void StoreGated(const Tile& tile, const Result& c, int64_t gated_columns) {
  const int64_t n0 = tile.n0 / 2, columns = std::min<int64_t>(kLanes, gated_columns - n0);
  T rounded[kMaxSliverRows * kLanes];
  GateRows(tile.sums, tile.rows, sizeof(T) == 2, tile.sums);
  FromFloat(tile.sums, rounded, tile.rows * kLanes);
  T* out = static_cast<T*>(c.data) + tile.m0 * c.row_stride + n0;
  for (int64_t r = 0; r < tile.rows; ++r)
    std::memcpy(out + r * c.row_stride, rounded + r * kLanes, static_cast<size_t>(columns) * sizeof(T));
}

template <class T>
void StoreRows(const Tile& tile, const Result& c) {
  T* out = static_cast<T*>(c.data) + tile.m0 * c.row_stride + tile.n0;
  if (tile.columns == kPanelColumns) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (RoundRowsToBf16(tile.sums, tile.rows, out, c.row_stride)) return;
    }
    for (int64_t r = 0; r < tile.rows; ++r)
      FromFloat(tile.sums + r * kPanelColumns, out + r * c.row_stride, kPanelColumns);
  } else {
    for (int64_t r = 0; r < tile.rows; ++r)
      FromFloat(tile.sums + r * kPanelColumns, out + r * c.row_stride, tile.columns);
  }
}

void StoreInt8(const Tile& tile, const Result& c, const Epilogue& epilogue) {
  if (epilogue.output_scale.data)
    WithColumns(tile, epilogue.output_scale, [](float value, float scale) { return value * scale; });
  if (epilogue.output_offset.data)
    WithColumns(tile, epilogue.output_offset, [](float value, float offset) { return value + offset; });
  int8_t* out = static_cast<int8_t*>(c.data) + tile.m0 * c.row_stride + tile.n0;
  for (int64_t r = 0; r < tile.rows; ++r, out += c.row_stride) {
    int8_t rounded[kPanelColumns];
    for (int64_t j = 0; j < kPanelColumns; ++j)
      rounded[j] = static_cast<int8_t>(RoundSaturated(tile.sums[r * kPanelColumns + j], -128.0f, 127.0f));
    std::memcpy(out, rounded, static_cast<size_t>(tile.columns));
  }
}

}  // namespace

void StoreTile(const Tile& tile, const Result& c, const Epilogue& epilogue, const StoredIntegers* integers) {
  if (integers) {
    Correct(tile, epilogue.integers, *integers);
    if (c.dtype == DType::kInt32) {
      for (int64_t r = 0; r < tile.rows; ++r)
        std::memcpy(static_cast<int32_t*>(c.data) + (tile.m0 + r) * c.row_stride + tile.n0,
                    tile.sums + r * kPanelColumns, static_cast<size_t>(tile.columns) * sizeof(int32_t));
      return;
    }
    ToFloats(tile);
    SubtractFloatZeros(tile, epilogue.integers.b_float_zero_point, integers->row_sums);
  }
  Scale(tile, epilogue);
  if (epilogue.gated_columns > 0) {
    DispatchFloats("Gemm", c.dtype, [&](auto type) { StoreGated<decltype(type)>(tile, c, epilogue.gated_columns); });
    return;
  }
  Add(tile, epilogue.addend);
  ScaleRows(tile, epilogue.total_scale);
  if (epilogue.activation) epilogue.activation(tile.sums, tile.rows * kPanelColumns);
  if (c.dtype == DType::kInt8) return StoreInt8(tile, c, epilogue);
  DispatchFloats("Gemm", c.dtype, [&](auto type) { StoreRows<decltype(type)>(tile, c); });
}

}  // namespace npu::gemm
