#include "ep/kernels/attention/core/query_rows.h"

#include <cmath>

#include "ep/kernels/convert.h"

namespace npu::attention {

namespace {

float Read(const DeviceScalar& scalar, float absent) {
  if (scalar.data == nullptr) return absent;
  if (BitsOf(scalar.dtype) != 64) {
    return DispatchFloats("attention", scalar.dtype,
                          [&](auto type) { return ToFloat(*static_cast<const decltype(type)*>(scalar.data)); });
  }
  uint64_t bits;
  std::memcpy(&bits, scalar.data, sizeof bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits));
}

// clamp(round(x * scale + offset)); NaN becomes the minimum.
void WriteInt8(const Problem& p, int64_t head, const float* x, int8_t* to) {
  const int64_t n = p.value_size, first = p.output_scale_per_column ? head * n : 0;
  DispatchFloats(p.op, p.output_scale_dtype, [&](auto type) {
    const auto* scale = static_cast<const decltype(type)*>(p.output_scale) + first;
    const auto* offset = static_cast<const decltype(type)*>(p.output_offset);
    if (offset != nullptr) offset += first;
    for (int64_t d = 0; d < n; ++d) {
      const int64_t column = p.output_scale_per_column ? d : 0;
      float y = x[d] * ToFloat(scale[column]);
      if (offset != nullptr) y += ToFloat(offset[column]);
      y = std::nearbyint(y);
      y = y > -128.0f ? y : -128.0f;
      to[d] = static_cast<int8_t>(y < 127.0f ? y : 127.0f);
    }
  });
}

}  // namespace

void QueryAsFloats(const Problem& p, const Rows& rows, DType dtype, int64_t offset, int64_t columns, float* to) {
  if (dtype == DType::kInt8) {
    const int8_t* from = static_cast<const int8_t*>(rows.data) + offset;
    // Beside a rope part, which is none of integers, the scale of scores is that of these columns.
    const float scale = p.rope_size > 0 ? Read(p.score_scale, 1.0f) : 1.0f;
    for (int64_t d = 0; d < columns; ++d) to[d] = static_cast<float>(from[d]) * scale;
    return;
  }
  DispatchFloats(p.op, dtype,
                 [&](auto type) { ToFloat(static_cast<const decltype(type)*>(rows.data) + offset, to, columns); });
}

float ScoreScale(const Problem& p) { return p.rope_size > 0 ? p.scale : p.scale * Read(p.score_scale, 1.0f); }
float WeightScale(const Problem& p) { return Read(p.weight_scale, 0.0f); }

void FinishRow(const Problem& p, const Item& item, int64_t r, RowState state) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  if (p.sink != nullptr) AddSink(p.sink[at.head] * kLog2E, p.value_size, state);
  if (state.sum == 0.0f) {
    std::fill_n(state.values, p.value_size, 0.0f);
  } else {
    const float inverse = Read(p.value_scale, 1.0f) / state.sum;
    for (int64_t d = 0; d < p.value_size; ++d) state.values[d] *= inverse;
  }
  const int64_t offset = s.output + at.head * p.output.head_stride + at.query * p.output.row_stride;
  if (p.output_dtype == DType::kInt8) {
    WriteInt8(p, at.head, state.values, static_cast<int8_t*>(p.output.data) + offset);
  } else {
    DispatchFloats(p.op, p.output_dtype, [&](auto type) {
      FromFloat(state.values, static_cast<decltype(type)*>(p.output.data) + offset, p.value_size);
    });
  }
  const int64_t place = s.lse + at.head * p.lse_head_stride + at.query * p.lse_row_stride;
  if (p.lse != nullptr) {
    p.lse[place] = state.sum == 0.0f ? kNegativeInfinity : (state.max + std::log2(state.sum)) * kLn2;
  }
  if (p.row_max != nullptr) {
    // The vector maximum may lose a NaN, the sum does not; the sum of a row with a score of +inf is NaN, too.
    const bool lost = std::isnan(state.sum) && !(state.max == -kNegativeInfinity);
    std::fill_n(p.row_max + place, kStatisticsWidth, lost ? state.sum : state.max * kLn2);
  }
  if (p.row_sum != nullptr) std::fill_n(p.row_sum + place, kStatisticsWidth, state.sum);
}

namespace {

bool HasNaN(const Problem& p, const RowState& state) {
  int any = std::isnan(state.sum);
#pragma omp simd reduction(| : any)
  for (int64_t d = 0; d < p.value_size; ++d) any |= state.values[d] != state.values[d];
  return any != 0;
}

// Whether this row does not see some keys of the item.
bool HidesKeys(const Problem& p, const Item& item, int64_t r) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  const KeyRange keys = KeysOfRow(s, at.query);
  if (keys.begin > item.key_begin || keys.end < item.key_end) return true;
  if (p.mask != nullptr && s.column_gap != 0) return true;  // perhaps, and it is only a matter of speed
  return p.mask != nullptr &&
         CoverOf(MaskOf(p, s, at) + item.key_begin, 0, 1, item.key_end - item.key_begin) != Cover::kNone;
}

}  // namespace

void EmitRow(const Problem& p, const Item& item, int64_t r, RowState state, float* partials) {
  // The matmuls cover whole blocks: a hidden key has weight 0, and 0 times NaN or infinity is NaN.
  if (HasNaN(p, state) && HidesKeys(p, item, r)) RecomputeRow(p, item, r, state);
  if (item.partial < 0) return FinishRow(p, item, r, state);
  float* to = partials + (item.partial + r) * PartialStride(p);
  to[0] = state.max;
  to[1] = state.sum;
  std::copy_n(state.values, p.value_size, to + 2);
}

void FillBias(const Problem& p, const Item& item, int64_t r, int64_t begin, int64_t n, float* to) {
  const Sequence& s = p.sequences[static_cast<size_t>(item.sequence)];
  const RowPlace at = PlaceOf(p, item, r);
  if (s.column_gap != 0 && begin < p.prefix_rows && begin + n > p.prefix_rows) {
    const int64_t front = p.prefix_rows - begin;
    FillBias(p, item, r, begin, front, to);
    return FillBias(p, item, r, p.prefix_rows, n - front, to + front);
  }
  const int64_t column = ColumnOf(p, s, begin);
  if (p.bias.data != nullptr) {
    const BiasPlace from = BiasOf(p, s, at.query);
    const int64_t offset = s.bias + at.head * p.bias.head_stride + from.offset + column;
    const int64_t held = std::clamp<int64_t>(from.keys - begin, 0, n);
    DispatchFloats(p.op, p.bias_dtype,
                   [&](auto type) { ToFloat(static_cast<const decltype(type)*>(p.bias.data) + offset, to, held); });
    const float scale = p.bias_scale * kLog2E;
    for (int64_t j = 0; j < held; ++j) to[j] *= scale;
    std::fill(to + held, to + n, 0.0f);
  } else {
    std::fill_n(to, n, 0.0f);
  }
  if (p.mask != nullptr) {
    const uint8_t* mask = MaskOf(p, s, at) + column;
    for (int64_t j = 0; j < n; ++j) to[j] = mask[j] != 0 ? kNegativeInfinity : to[j];
  }
}

}  // namespace npu::attention
