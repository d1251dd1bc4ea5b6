// The float vector of this instruction-set level, as a compiler vector type: one source for every level.
#pragma once

#include <cstdint>

namespace npu::gemm {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kSliverRows = 12;  // 24 accumulators of 32 registers
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
inline constexpr int kSliverRows = 6;  // 12 accumulators of 16 registers
#elif defined(__aarch64__)
inline constexpr int kLanes = 4;
inline constexpr int kSliverRows = 12;  // 24 accumulators of 32 registers
#else
inline constexpr int kLanes = 4;
inline constexpr int kSliverRows = 6;
#endif
inline constexpr int kPanelColumns = 2 * kLanes;  // a tile is two vectors wide

using Vec __attribute__((vector_size(kLanes * 4), may_alias)) = float;
using VecU32 __attribute__((vector_size(kLanes * 4), may_alias)) = uint32_t;
using VecI32 __attribute__((vector_size(kLanes * 4), may_alias)) = int32_t;
using VecU16 __attribute__((vector_size(kLanes * 2), may_alias)) = uint16_t;

}  // namespace npu::gemm
