// Elements of 8-bit floats and of 4-bit integers, two of which share a byte, as floats.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr DTypeSet kFloat8{DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                                  DType::kFloat8E5M2FNUZ};
inline constexpr DTypeSet kNarrow = kFloat8 | DTypeSet{DType::kInt4, DType::kUInt4};

// n elements from element `first` on; of 4-bit integers, first is even.
void WidenNarrow(DType dtype, const void* from, int64_t first, int64_t n, float* to);
// The same the other way, rounded half to even; integers are truncated and keep their lowest bits. A float beyond the
// largest of the type becomes that one if `saturate`, else infinity, or NaN where the type has none. `n` is even unless
// the tensor ends there.
void NarrowFloats(DType dtype, bool saturate, const float* from, int64_t first, int64_t n, void* to);

}  // namespace npu
