// bfloat16 through VDPBF16PS, two rows of K per instruction, and 8-bit integers through VPDPBUSD, four.
#include <utility>

#include "ep/kernels/gemm/dot_products.h"
#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/microkernel.h"

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

// kDepth elements along K are 32 bits of a row of A, and 32 bits of each column of B.
struct DotBf16 {
  static constexpr int kDepth = 2;
  static void Add(__m512i& sum, __m512i b, __m512i a) { AddDotOfBf16(sum, b, a); }
  static __m512i Combined(__m512i x, __m512i y) { return (__m512i)_mm512_add_ps((__m512)x, (__m512)y); }
};
// Unsigned elements of A, signed ones of B.
struct DotQuads {
  static constexpr int kDepth = 4;
  static void Add(__m512i& sum, __m512i b, __m512i a) { AddDotOfBytes(sum, a, b); }
  static __m512i Combined(__m512i x, __m512i y) { return _mm512_add_epi32(x, y); }
};

// kVectors: of each row of the panel, from its first on.
template <class Dot, int kRows, int kVectors>
void DotTile(const Sliver& sliver, const void* b_panel, const Prefetch& ahead, int64_t depth, float* tile,
             bool accumulate) {
  Prefetch prefetch = ahead;
  constexpr int kChunk = 16;                                    // steps along a row in one chunk
  constexpr int kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;  // as in FloatTile
  RowPointers<kRows> a(sliver);
  const char* b = static_cast<const char*>(b_panel);
  int64_t left = (depth + Dot::kDepth - 1) / Dot::kDepth;

  __m512i sum[kChains][kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[0][r][v] = accumulate ? _mm512_load_si512(tile + r * kPanelColumns + v * kLanes) : _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int chain = 1; chain < kChains; ++chain) sum[chain][r][v] = _mm512_setzero_si512();
    }
  }
  while (left > 0) {
    const int steps = left < kChunk ? static_cast<int>(left) : kChunk;
    prefetch.Chunk();
    for (int s = 0; s < steps; s += kChains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) {
        if (chain != 0 && s + chain >= steps) break;
        prefetch.Row<2 * 64>();
        __m512i of_panel[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) of_panel[v] = _mm512_load_si512(b + v * 64);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m512i of_row = _mm512_set1_epi32(a.template Read<int>(r, (s + chain) * 4));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) Dot::Add(sum[chain][r][v], of_panel[v], of_row);
        }
        b += 2 * 64;
      }
    }
    left -= steps;
    a.Advance(sliver.chunk_stride);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int chain = 1; chain < kChains; ++chain) sum[0][r][v] = Dot::Combined(sum[0][r][v], sum[chain][r][v]);
      _mm512_store_si512(tile + r * kPanelColumns + v * kLanes, sum[0][r][v]);
    }
  }
}

__attribute__((target("avx512bf16"))) void RoundWholeRows(const float* tile, int64_t rows, BFloat16* out,
                                                          int64_t row_stride) {
  for (int64_t r = 0; r < rows; ++r, tile += kPanelColumns, out += row_stride)
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + kLanes), _mm512_loadu_ps(tile)));
}

template <class Dot, int... kRows>
MicroKernel MakeDotKernel(SliverFormat format, std::integer_sequence<int, kRows...>) {
  return {.sliver_format = format,
          .sliver_rows = kSliverRows,
          .row_multiple = 1,
          .depth_multiple = Dot::kDepth,
          .rows_per_panel = 96,
          .functions = {nullptr, &DotTile<Dot, kRows + 1, 2>...},
          .half_functions = {nullptr, &DotTile<Dot, kRows + 1, 1>...}};
}
using SliverRows = std::make_integer_sequence<int, kSliverRows>;

}  // namespace

const MicroKernel* Bf16Kernel() {
  static const MicroKernel kernel = MakeDotKernel<DotBf16>(SliverFormat::kHalves, SliverRows{});
  return Features().avx512_bf16 ? &kernel : nullptr;
}

const MicroKernel* IntegerDotKernel(DType) {
  static const MicroKernel kernel = MakeDotKernel<DotQuads>(SliverFormat::kUnsignedBytes, SliverRows{});
  return Features().avx512_vnni ? &kernel : nullptr;
}

bool RoundRowsToBf16(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride) {
  static const bool available = Features().avx512_bf16;
  if (available) RoundWholeRows(tile, rows, out, row_stride);
  return available;
}

#elif !defined(__aarch64__)  // microkernel_neon.cc

const MicroKernel* Bf16Kernel() { return nullptr; }
bool RoundRowsToBf16(const float*, int64_t, BFloat16*, int64_t) { return false; }

#endif

}  // namespace npu::gemm
