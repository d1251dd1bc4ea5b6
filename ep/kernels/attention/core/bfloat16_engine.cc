// The bfloat16 engine on vdpbf16ps. The whole file is compiled for that instruction, so that the shared templates
// inline it; nothing here runs unless Features() reports it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/core/engine.h"
#include "ep/kernels/attention/core/query_rows.h"

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")
#endif

#include "ep/kernels/attention/core/narrow.h"
#include "ep/kernels/attention/core/panel.h"

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
  NPU_SIMD_INLINE static Vec Weight(Vec x) { return Exp2(x); }
  NPU_SIMD_INLINE static Vec Pack(Vec even, Vec odd) {
    return InterleaveHalves((__m256i)_mm512_cvtneps_pbh(even), (__m256i)_mm512_cvtneps_pbh(odd));
  }
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
  if (!Features().avx512_bf16) return {};
  return {RunNarrowItem<NarrowPairs>, RunPanelItem<PairMath>, NarrowScratchBytes<NarrowPairs>,
          PanelScratchBytes<PairMath>};
}
#else
Engine BFloat16Engine() { return {}; }
#endif

}  // namespace npu::attention
