// Prefill through tile registers (AMX), for bfloat16 and float16. Compiled with the bfloat16 conversion that every
// machine with tiles has; nothing here runs unless Features() reports both.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/core/engine.h"
#include "ep/kernels/attention/core/query_rows.h"

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")

#include "ep/kernels/attention/core/tile_panel.h"
#endif

namespace npu::attention {

#if defined(__AVX512F__)
namespace {

struct BFloat16Tiles {
  using Element = BFloat16;
  using Dot = amx::DotBf16;
  static constexpr int kElements = 2;
  static constexpr bool kTiles = true;
  NPU_SIMD_INLINE static Vec Weight(Vec x) { return RoughExp2(x); }
  // Rounds to the nearest bfloat16, halves up. Weights are not negative; a NaN may become another number, but its row's
  // sum of weights is NaN, too.
  NPU_SIMD_INLINE static Vec Pack(Vec even, Vec odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32((__m512i)even, half), 16);
    return (Vec)_mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_add_epi32((__m512i)odd, half));
  }
};

struct Float16Tiles {
  using Element = Float16;
  using Dot = amx::DotFp16;
  static constexpr int kElements = 2;
  static constexpr bool kTiles = true;
  NPU_SIMD_INLINE static Vec Weight(Vec x) { return Exp2(x); }
  NPU_SIMD_INLINE static Vec Pack(Vec even, Vec odd) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return InterleaveHalves(_mm512_maskz_cvtps_ph(0xffff, even, kNearest),
                            _mm512_maskz_cvtps_ph(0xffff, odd, kNearest));
  }
};

// Few rows are computed in float: they are bound by memory, and on machines with tiles the bfloat16 dot product runs at
// half the rate of float multiplications.
template <class Tiles>
Engine EngineOf(DType dtype) {
  Engine engine = FloatEngine(dtype);
  engine.panel = RunTilePanelItem<Tiles>;
  engine.panel_scratch_bytes = PanelScratchBytes<Tiles>;
  // Machines with tiles have 2 MB of L2 cache, and loading a block of keys is a larger part of the time.
  engine.item_bytes = 1 << 20;
  engine.item_rows = 1024;
  return engine;
}

}  // namespace

Engine TileEngine(DType dtype) {
  const CpuFeatures& features = Features();
  if (!features.avx512_bf16) return {};
  if (dtype == DType::kBFloat16 && features.amx_bf16) return EngineOf<BFloat16Tiles>(dtype);
  if (dtype == DType::kFloat16 && features.amx_fp16) return EngineOf<Float16Tiles>(dtype);
  return {};
}
#else
Engine TileEngine(DType) { return {}; }
#endif

}  // namespace npu::attention
