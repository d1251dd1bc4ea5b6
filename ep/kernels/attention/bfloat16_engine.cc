// The bfloat16 engines: pairs by vdpbf16ps, prefill by tile registers where there are any. The whole file is compiled
// for that instruction, so that the shared templates inline it; nothing here runs unless Features() has it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/engine.h"
#include "ep/kernels/attention/rows.h"

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")
#endif

#include "ep/kernels/attention/narrow.h"
#include "ep/kernels/attention/panel.h"

namespace npu::attention {

#if defined(__AVX512F__)
namespace {

struct PairMath {
  using Element = BFloat16;
  static constexpr int kElements = 2;
  static constexpr bool kTiles = false;
  NPU_SIMD_INLINE static void MultiplyAdd(Vec& sum, float a, Vec b) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)_mm512_set1_ps(a));
  }
  // Lane by lane, so that no lane moves: the rounded odd value above the even one.
  NPU_SIMD_INLINE static Vec Pack(Vec even, Vec odd) {
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
    return (Vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
};

// Pairs in the same places; tile_products.h multiplies them.
struct TileMath : PairMath {
  static constexpr bool kTiles = true;
};

struct NarrowPairs {
  using Storage = BFloat16;
  using Query = BFloat16;
  using Register = __m512i;
  static constexpr int kStep = 2 * kLanes;
  NPU_SIMD_INLINE static __m512i LoadStep(const BFloat16* p) { return _mm512_loadu_si512(p); }
  NPU_SIMD_INLINE static void MultiplyAdd(Vec& sum, __m512i a, __m512i b) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace

Engine BFloat16Engine() {
  if (Features().amx_bf16) {
    // Beside tiles the instruction for pairs has half the rate of products in float, and gains nothing.
    Engine engine = FloatEngine(DType::kBFloat16);
    engine.panel = RunPanelItem<TileMath>;
    engine.panel_scratch_bytes = PanelScratchBytes<TileMath>;
    return engine;
  }
  return {RunNarrowItem<NarrowPairs>, RunPanelItem<PairMath>, NarrowScratchBytes<NarrowPairs>,
          PanelScratchBytes<PairMath>};
}
#else
Engine BFloat16Engine() { return {}; }
#endif

}  // namespace npu::attention
