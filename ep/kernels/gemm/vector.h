// Tiles of float vectors in matmuls, as compiler vector types: one source for every level.
#pragma once

#include <cstdint>

#include "ep/kernels/float_vector.h"

namespace npu::gemm {

using simd::kLanes;

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kSliverRows = 12;  // 24 accumulators of 32 registers
#else
inline constexpr int kSliverRows = 6;  // 12 accumulators of 16 registers
#endif
inline constexpr int kPanelColumns = 2 * kLanes;  // a tile is two vectors wide

using Vec __attribute__((vector_size(kLanes * 4), may_alias)) = float;
using VecU32 __attribute__((vector_size(kLanes * 4), may_alias)) = uint32_t;
using VecI32 __attribute__((vector_size(kLanes * 4), may_alias)) = int32_t;
using VecU16 __attribute__((vector_size(kLanes * 2), may_alias)) = uint16_t;

}  // namespace npu::gemm
