// Rows of A as int8 times a panel of stored integers, by SDOT. Rounded as in rounded_dot_exact.cc.
#include <algorithm>
#include <utility>

#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/stored_row.h"

namespace npu::gemm {

#if defined(__ARM_FEATURE_DOTPROD)

namespace {

// sums[kRows][2] = the products of a group.
template <int bits, int kRows>
__attribute__((noinline)) void SumQuads(const int8_t* x, const uint8_t* stored, int64_t quads, int32x4_t (*sums)[2]) {
  int32x4_t sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = vdupq_n_s32(0);
  for (int64_t q = 0; q < quads; ++q, stored += kQuadBytes<bits>, x += kRows * 4) {
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    int8x16_t low, high;  // two rows of K each
    if constexpr (bits == 4) {
      const uint8x16_t bytes = vld1q_u8(stored);
      low = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), vdupq_n_s8(8));
      high = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), vdupq_n_s8(8));
    } else {
      low = vreinterpretq_s8_u8(vld1q_u8(stored));
      high = vreinterpretq_s8_u8(vld1q_u8(stored + kStoredElements));
    }
    const int16x8_t even = vreinterpretq_s16_s8(low), odd = vreinterpretq_s16_s8(high);
    const int8x16_t first = vreinterpretq_s8_s16(vzip1q_s16(even, odd));
    const int8x16_t second = vreinterpretq_s8_s16(vzip2q_s16(even, odd));
    // Four rows in a register: those beyond the last are not used.
    constexpr int kRegisters = (kRows + 3) / 4;
    int8x16_t of_rows[kRegisters];
#pragma GCC unroll 3
    for (int i = 0; i < kRegisters; ++i) of_rows[i] = vld1q_s8(x + 16 * i);
    [&]<int... r>(std::integer_sequence<int, r...>) {
      ((sum[r][0] = vdotq_laneq_s32(sum[r][0], first, of_rows[r / 4], r % 4),
        sum[r][1] = vdotq_laneq_s32(sum[r][1], second, of_rows[r / 4], r % 4)),
       ...);
    }(std::make_integer_sequence<int, kRows>{});
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = sum[r][0];
    sums[r][1] = sum[r][1];
  }
}

// a + b * c, of integers' sums with a rounding of the product.
inline float32x4_t MultiplyAdd(bool integers, float32x4_t b, float32x4_t c, float32x4_t a) {
  return integers ? vaddq_f32(a, vmulq_f32(b, c)) : vfmaq_f32(a, b, c);
}

template <int bits, int kRows>
void DotRows(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  int32x4_t sums[kRows][2];
  const int results = static_cast<int>(a.results());
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t begin = g * a.group / 4, end = (std::min(a.depth, (g + 1) * a.group) + 3) / 4;
    SumQuads<bits, kRows>(a.values + begin * kRows * 4, stored + begin * kQuadBytes<bits>, end - begin, sums);
    const int32_t of_zero = a.zero_point == 0 ? 0 : a.zero_point * a.sums[g * a.stride + kRows - 1];
    for (int r = 0; r < results; ++r) {
      const int64_t at = g * a.stride + r;
      const float32x4_t row_scale = vdupq_n_f32(a.scales[at]);
      const float32x4_t row_sum = vdupq_n_f32(static_cast<float>(a.sums[at] - of_zero));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int32x4_t of_ones = a.zero_point == 0 ? vdupq_n_s32(0) : vmulq_n_s32(sums[kRows - 1][v], a.zero_point);
        float32x4_t sum = vcvtq_f32_s32(vsubq_s32(sums[r][v], of_ones));
        const int64_t column = g * scales.stride + v * kLanes;
        if (scales.offset) sum = MultiplyAdd(a.integers, vld1q_f32(scales.offset + column), row_sum, sum);
        float* total = tile + r * kPanelColumns + v * kLanes;
        const float* first = scales.first ? scales.first + v * kLanes : nullptr;
        const float* before = g == 0 ? first : total;
        const float32x4_t scale = vmulq_f32(vld1q_f32(scales.scale + column), row_scale);
        vst1q_f32(total, MultiplyAdd(a.integers, sum, scale, before ? vld1q_f32(before) : vdupq_n_f32(0.0f)));
      }
    }
  }
}

template <int bits, int... kRows>
void DotOfRows(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile,
               std::integer_sequence<int, kRows...>) {
  static constexpr RoundedDotFunction kFunctions[] = {&DotRows<bits, kRows + 1>...};
  kFunctions[a.rows - 1](a, stored, scales, tile);
}

template <int bits>
void Dot(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  DotOfRows<bits>(a, stored, scales, tile, std::make_integer_sequence<int, kVectorSlivers.rows>{});
}

}  // namespace

RoundedDotFunction NeonRoundedDot(int bits) { return bits == 8 ? &Dot<8> : &Dot<4>; }

#else

RoundedDotFunction NeonRoundedDot(int) { return nullptr; }

#endif

}  // namespace npu::gemm
