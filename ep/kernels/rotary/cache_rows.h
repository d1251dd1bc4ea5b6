// Stores new rows, one token each, in a cache of keys or values.
#pragma once

#include <cmath>
#include <cstdint>

#include "ep/kernels/convert.h"
#include "ep/kernels/segments.h"

namespace npu {

// `float` rounded to int8 and clamped to it; NaN becomes -128.
inline int8_t ToInt8(float value) {
  const float v = std::nearbyint(value);
  const float low = v > -128.0f ? v : -128.0f;
  return static_cast<int8_t>(low < 127.0f ? low : 127.0f);
}

// Rows of `width` elements, `page` rows at a time.
struct CacheRows {
  void* data;  // null: not requested
  DType dtype;
  const float* scale;  // per column, for int8; null: a float type
  int64_t width, page;
  bool fractal;  // a page is stored as [width / d0, page, d0], d0 = 16, or 32 in int8; width is a multiple of it

  void Store(int64_t slot, const float* values) const {
    if (data == nullptr) return;
    if (scale == nullptr) {
      DispatchFloats("cache", dtype, [&](auto type) {
        using T = decltype(type);
        StoreAs<T>(slot, [=](T* to, int64_t at, int64_t count) { FromFloat(values + at, to, count); });
      });
    } else {
      StoreAs<int8_t>(slot, [=, this](int8_t* to, int64_t at, int64_t count) {
        for (int64_t i = 0; i < count; ++i) to[i] = ToInt8(values[at + i] * scale[at + i]);
      });
    }
  }

  // Copies the rows of `source`, unless they are the same.
  void CopyFrom(const void* source, int64_t pages) const {
    if (data == source || data == nullptr) return;
    CopyBytes(source, data, static_cast<int64_t>(BytesFor(dtype, pages * page * width)));
  }

 private:
  template <class T, class F>
  void StoreAs(int64_t slot, F write) const {
    T* rows = static_cast<T*>(data);
    if (!fractal) return write(rows + slot * width, int64_t{0}, width);
    constexpr int64_t d0 = sizeof(T) == 1 ? 32 : 16;
    T* block = rows + slot / page * page * width + slot % page * d0;
    for (int64_t at = 0; at < width; at += d0) write(block + at * page, at, d0);
  }
};

}  // namespace npu
