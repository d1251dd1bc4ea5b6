// bfloat16 through VDPBF16PS: two rows of K per instruction.
#include <utility>

#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/microkernel.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

template <int kRows>
__attribute__((target("avx512bf16"))) void Bf16Tile(const Sliver& sliver, const void* b_panel, Prefetch prefetch,
                                                    int64_t depth, float* tile, bool accumulate) {
  constexpr int kChunk = 16;                                    // pairs of one row in one chunk
  constexpr int kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;  // as in FloatTile
  RowPointers<kRows> a(sliver);
  const char* b = static_cast<const char*>(b_panel);
  int64_t pairs = (depth + 1) / 2;

  __m512 sum[kChains][kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[0][r][0] = accumulate ? _mm512_load_ps(tile + r * kPanelColumns) : _mm512_setzero_ps();
    sum[0][r][1] = accumulate ? _mm512_load_ps(tile + r * kPanelColumns + kLanes) : _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int chain = 1; chain < kChains; ++chain) sum[chain][r][0] = sum[chain][r][1] = _mm512_setzero_ps();
  }
  while (pairs > 0) {
    const int steps = pairs < kChunk ? static_cast<int>(pairs) : kChunk;
    prefetch.ResultRow();
    for (int s = 0; s < steps; s += kChains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) {
        if (chain != 0 && s + chain >= steps) break;
        prefetch.Row<2 * 64>();
        const __m512bh low = (__m512bh)_mm512_load_si512(b);
        const __m512bh high = (__m512bh)_mm512_load_si512(b + 64);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m512bh pairs_of_row = (__m512bh)_mm512_set1_epi32(a.template Read<int>(r, (s + chain) * 4));
          sum[chain][r][0] = _mm512_dpbf16_ps(sum[chain][r][0], low, pairs_of_row);
          sum[chain][r][1] = _mm512_dpbf16_ps(sum[chain][r][1], high, pairs_of_row);
        }
        b += 2 * 64;
      }
    }
    pairs -= steps;
    a.Advance(sliver.chunk_stride);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int chain = 1; chain < kChains; ++chain) {
      sum[0][r][0] = _mm512_add_ps(sum[0][r][0], sum[chain][r][0]);
      sum[0][r][1] = _mm512_add_ps(sum[0][r][1], sum[chain][r][1]);
    }
    _mm512_store_ps(tile + r * kPanelColumns, sum[0][r][0]);
    _mm512_store_ps(tile + r * kPanelColumns + kLanes, sum[0][r][1]);
  }
}

__attribute__((target("avx512bf16"))) void RoundWholeRows(const float* tile, int64_t rows, BFloat16* out,
                                                          int64_t row_stride) {
  for (int64_t r = 0; r < rows; ++r, tile += kPanelColumns, out += row_stride)
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + kLanes), _mm512_loadu_ps(tile)));
}

template <int... kRows>
MicroKernel MakeBf16Kernel(std::integer_sequence<int, kRows...>) {
  return {.sliver_format = SliverFormat::kHalves,
          .sliver_rows = kSliverRows,
          .row_multiple = 1,
          .depth_multiple = 2,
          .rows_per_panel = 96,
          .functions = {nullptr, &Bf16Tile<kRows + 1>...}};
}

}  // namespace

const MicroKernel* Bf16Kernel() {
  static const MicroKernel kernel = MakeBf16Kernel(std::make_integer_sequence<int, kSliverRows>{});
  return Features().avx512_bf16 ? &kernel : nullptr;
}

bool internal::RoundRowsToBf16(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride) {
  static const bool available = Features().avx512_bf16;
  if (available) RoundWholeRows(tile, rows, out, row_stride);
  return available;
}

#else

const MicroKernel* Bf16Kernel() { return nullptr; }
bool internal::RoundRowsToBf16(const float*, int64_t, BFloat16*, int64_t) { return false; }

#endif

}  // namespace npu::gemm
