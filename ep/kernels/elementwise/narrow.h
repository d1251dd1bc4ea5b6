// Elements of 8 bits and less that are not plain integers: floats, and integers that share a byte with others, the
// first in its lowest bits.
#pragma once

#include <algorithm>

#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr DTypeSet kFloat8{DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                                  DType::kFloat8E5M2FNUZ};
inline constexpr DTypeSet kNarrowFloats = kFloat8 | DTypeSet{DType::kFloat4E2M1};
inline constexpr DTypeSet kNarrowIntegers{DType::kInt4, DType::kUInt4, DType::kInt2, DType::kUInt2};
inline constexpr DTypeSet kNarrow = kNarrowFloats | kNarrowIntegers | DTypeSet{DType::kFloat8E8M0};
inline constexpr DTypeSet kAnyWidth = kFixedWidth | kNarrow;
inline constexpr DTypeSet kWholeBytes = kFixedWidth | kFloat8 | DTypeSet{DType::kFloat8E8M0};

// How floats become narrow ones.
struct Narrowing {
  // A float beyond the largest becomes that one; otherwise infinity, or NaN where the type has none. Float4e2m1 has
  // neither and always saturates.
  bool saturate = true;
  // Of float8e8m0, whose elements are powers of two; the nearest one rounds half up. All others round half to even.
  enum class Power { kUp, kDown, kNearest } power = Power::kUp;
};

// n elements from element `first` on, which begins a byte, as floats.
void UpcastNarrow(DType dtype, const void* from, int64_t first, int64_t n, float* to);
// The same the other way: integers are truncated and keep their lowest bits, float8e8m0 ignores signs, NaN in
// float4e2m1 becomes -0. `n` ends with a byte unless the tensor ends there.
void NarrowFloats(DType dtype, Narrowing how, const float* from, int64_t first, int64_t n, void* to);

// kNarrowIntegers as bytes with their sign, and back; of float4e2m1, the codes.
void UnpackIntegers(DType dtype, const void* from, int64_t first, int64_t n, uint8_t* to);
void PackIntegers(DType dtype, const uint8_t* from, int64_t first, int64_t n, void* to);

// f(first element, count) for blocks that begin and end with a byte of any narrow type, on the pool.
template <class F>
void ForNarrowBlocks(int64_t n, const F& f) {
  ParallelFor((n + kRowBlock - 1) / kRowBlock, RowGrain(kRowBlock), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) f(block * kRowBlock, std::min(kRowBlock, n - block * kRowBlock));
  });
}

}  // namespace npu
