#include "ep/kernels/quantization/quantize.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/int4.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu {
namespace {

template <QuantizeBy kHow>
float Scaled(float x, float scale, float offset) {
  if constexpr (kHow == QuantizeBy::kDivision) return RoundHalfEven(x / scale) + offset;
  if constexpr (kHow == QuantizeBy::kDivisionRoundedAtEnd) return x / scale + offset;
  return x * scale + offset;
}

template <QuantizeBy kHow, bool kScales, bool kOffsets>
void Scale(const float* x, const float* scale, const float* offset, float* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = Scaled<kHow>(x[i], scale[kScales ? i : 0], offset[kOffsets ? i : 0]);
}

template <QuantizeBy kHow>
void Scale(const float* x, RowParameter scale, RowParameter offset, float* out, int64_t count) {
  if (scale.per_column && offset.per_column) return Scale<kHow, true, true>(x, scale.values, offset.values, out, count);
  if (scale.per_column) return Scale<kHow, true, false>(x, scale.values, offset.values, out, count);
  if (offset.per_column) return Scale<kHow, false, true>(x, scale.values, offset.values, out, count);
  Scale<kHow, false, false>(x, scale.values, offset.values, out, count);
}

template <class T>
void StoreRounded(const float* x, float low, float high, T* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(RoundSaturated(x[i], low, high));
}

void Store(QuantizedType type, const float* x, void* out, int64_t count) {
  switch (type) {
    case QuantizedType::kInt8:
      return StoreRounded(x, -128.0f, 127.0f, static_cast<int8_t*>(out), count);
    case QuantizedType::kUInt8:
      return StoreRounded(x, 0.0f, 255.0f, static_cast<uint8_t*>(out), count);
    case QuantizedType::kInt32: {
      int32_t* to = static_cast<int32_t*>(out);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) to[i] = SaturateToInt32(RoundHalfEven(x[i]));
      return;
    }
    case QuantizedType::kInt4: {
      alignas(64) int8_t values[kRowBlock];
      StoreRounded(x, -8.0f, 7.0f, values, count);
      return PackInt4(values, static_cast<uint32_t*>(out), count / 8);
    }
  }
}

}  // namespace

const char* NameOf(QuantizedType type) {
  switch (type) {
    case QuantizedType::kInt8:
      return "int8";
    case QuantizedType::kUInt8:
      return "uint8";
    case QuantizedType::kInt32:
      return "int32";
    case QuantizedType::kInt4:
      return "int4";
  }
  return "";
}

void QuantizeBlock(QuantizeBy how, QuantizedType type, const float* x, RowParameter scale, RowParameter offset,
                   void* out, int64_t count) {
  alignas(64) float scaled[kRowBlock];
  switch (how) {
    case QuantizeBy::kDivision:
      Scale<QuantizeBy::kDivision>(x, scale, offset, scaled, count);
      break;
    case QuantizeBy::kDivisionRoundedAtEnd:
      Scale<QuantizeBy::kDivisionRoundedAtEnd>(x, scale, offset, scaled, count);
      break;
    case QuantizeBy::kMultiplicationRoundedAtEnd:
      Scale<QuantizeBy::kMultiplicationRoundedAtEnd>(x, scale, offset, scaled, count);
      break;
  }
  Store(type, scaled, out, count);
}

void DequantizeBlock(const float* x, RowParameter scale, RowParameter offset, float* out, int64_t count) {
  const int64_t scales = scale.per_column ? 1 : 0, offsets = offset.per_column ? 1 : 0;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = (x[i] + offset.values[i * offsets]) * scale.values[i * scales];
}

Shape StoredShape(const char* op, const char* name, const Shape& shape, QuantizedType type) {
  if (type != QuantizedType::kInt4) return shape;
  NPU_OP_CHECK(op, shape.rank() >= 1 && shape.back() % 8 == 0, "expected ", name,
               " whose last axis is a multiple of 8 for int4, got ", shape);
  Shape stored = shape;
  stored[shape.rank() - 1] /= 8;
  return stored;
}

}  // namespace npu
