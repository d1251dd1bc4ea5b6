// The bfloat16 engine on VDPBF16PS or BFDOT. The whole file is compiled for that instruction, so that the shared
// templates inline it; nothing here runs unless Features() reports it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/core/engine.h"
#include "ep/kernels/attention/core/query_rows.h"

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")
#elif defined(__ARM_FEATURE_DOTPROD)
#pragma GCC target("+bf16")
#endif

#include "ep/kernels/attention/core/narrow.h"
#include "ep/kernels/attention/core/panel.h"

namespace npu::attention {

#if defined(__AVX512F__) || defined(__ARM_FEATURE_DOTPROD)
namespace {

#if defined(__AVX512F__)
bool HasInstruction() { return Features().avx512_bf16; }
NPU_SIMD_INLINE Vec Rounded(Vec even, Vec odd) {
  return InterleaveHalves((__m256i)_mm512_cvtneps_pbh(even), (__m256i)_mm512_cvtneps_pbh(odd));
}
#else
bool HasInstruction() { return Features().neon_bf16; }
NPU_SIMD_INLINE Vec DotPairs(Vec sum, Vec a, Vec b) { return vbfdotq_f32(sum, (bfloat16x8_t)a, (bfloat16x8_t)b); }
NPU_SIMD_INLINE Vec Rounded(Vec even, Vec odd) {
  return (Vec)vzip1q_u16((uint16x8_t)vcvtq_low_bf16_f32(even), (uint16x8_t)vcvtq_low_bf16_f32(odd));
}
#endif

struct PairMath {
  using Element = BFloat16;
  static constexpr int kElements = 2;
  static constexpr bool kTiles = false;
  NPU_SIMD_INLINE static void MultiplyAdd(Vec& sum, float a, Vec b) { sum = DotPairs(sum, b, Broadcast(a)); }
  NPU_SIMD_INLINE static Vec Weight(Vec x) { return Exp2(x); }
  NPU_SIMD_INLINE static Vec Pack(Vec even, Vec odd) { return Rounded(even, odd); }
};

struct NarrowPairs {
  using Storage = BFloat16;
  using Query = BFloat16;
  static constexpr int kStep = 2 * kLanes;
#if defined(__AVX512F__)
  static constexpr bool kPairs = true;
#else
  static constexpr bool kPairs = false;
  using Register = Vec;
  NPU_SIMD_INLINE static Vec LoadStep(const BFloat16* p) {
    Vec pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return pairs;
  }
  NPU_SIMD_INLINE static void MultiplyAdd(Vec& sum, Vec a, Vec b) { sum = DotPairs(sum, a, b); }
#endif
};

}  // namespace

Engine BFloat16Engine() {
  if (!HasInstruction()) return {};
  return {RunNarrowItem<NarrowPairs>, RunPanelItem<PairMath>, NarrowScratchBytes<NarrowPairs>,
          PanelScratchBytes<PairMath>};
}
#else
Engine BFloat16Engine() { return {}; }
#endif

}  // namespace npu::attention
