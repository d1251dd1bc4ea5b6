// Prefill through tile registers (AMX), for bfloat16 and float16. Compiled with the bfloat16 conversion that every
// machine with tiles has; nothing here runs unless Features() reports both.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/attention/core/engine.h"
#include "ep/kernels/attention/core/query_rows.h"

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")
#endif

#include "ep/kernels/attention/core/panel.h"

namespace npu::attention {

#if defined(__AVX512F__)
namespace {

struct BFloat16Tiles {
  using Element = BFloat16;
  using Dot = amx::DotBf16;
  static constexpr int kElements = 2;
  static constexpr bool kTiles = true;
  NPU_SIMD_INLINE static Vec Pack(Vec even, Vec odd) {
    return InterleaveHalves((__m256i)_mm512_cvtneps_pbh(even), (__m256i)_mm512_cvtneps_pbh(odd));
  }
};

struct Float16Tiles {
  using Element = Float16;
  using Dot = amx::DotFp16;
  static constexpr int kElements = 2;
  static constexpr bool kTiles = true;
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
  engine.panel = RunPanelItem<Tiles>;
  engine.panel_scratch_bytes = PanelScratchBytes<Tiles>;
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
