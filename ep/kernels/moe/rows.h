// Rows of tokens: a token with K slots has K of them, numbered with int32.
#pragma once

#include <cstring>
#include <limits>

#include "ep/kernels/op_check.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr int64_t kMaxExperts = 10240;

inline void CheckRowCount(const char* op, int64_t rows) {
  NPU_OP_CHECK(op, rows <= std::numeric_limits<int32_t>::max(), "expected at most ",
               std::numeric_limits<int32_t>::max(), " rows, got ", rows);
}

// Row i of `to` is row source(i) of `from`, or zeros where that is negative.
template <class F>
void GatherRows(const void* from, int64_t count, int64_t row_bytes, void* to, const F& source) {
  ForEachSegment(count, row_bytes, true, [=](int64_t i, int64_t at, int64_t length) {
    char* place = static_cast<char*>(to) + i * row_bytes + at;
    const int64_t row = source(i);
    if (row < 0) {
      std::memset(place, 0, static_cast<size_t>(length));
    } else {
      std::memcpy(place, static_cast<const char*>(from) + row * row_bytes + at, static_cast<size_t>(length));
    }
  });
}

// A result that the kernel also needs itself: scratch if the caller has no use for it.
template <class T>
T* OutputOrScratch(OpContext& ctx, size_t output, const Shape& shape) {
  const TensorView view = ctx.Output(output, DTypeOf<T>::value, shape);
  if (view) return view.as<T>();
  return static_cast<T*>(ctx.Workspace(BytesFor(DTypeOf<T>::value, shape.Elements())));
}

}  // namespace npu
