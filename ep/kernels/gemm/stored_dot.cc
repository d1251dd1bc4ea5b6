// Few rows of bfloat16 times a quantised panel through VDPBF16PS: the panel is read once and never written.
#include "ep/kernels/gemm/stored_row.h"
#include "ep/runtime/isa.h"

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

constexpr int kMostRows = 4;  // the sums of more rows, scales and offsets do not fit the registers
constexpr int kVectors = kStoredElements / kLanes;
constexpr int kStepsOfChunk = kChunkBytes / 4;  // pairs of bfloat16

#define NPU_BF16_INLINE inline __attribute__((target("avx512bf16"), always_inline))
#define NPU_BF16_LAMBDA __attribute__((target("avx512bf16"), always_inline))

template <bool has_offset>
NPU_BF16_INLINE __m512i Rounded(const Vec (&values)[kVectors], const __m512 (&offsets)[kVectors],
                                const __m512 (&scales)[kVectors], int half) {
  __m512 low = (__m512)values[2 * half], high = (__m512)values[2 * half + 1];
  if constexpr (has_offset) {
    low += offsets[2 * half];
    high += offsets[2 * half + 1];
  }
  return (__m512i)_mm512_cvtne2ps_pbh(high * scales[2 * half + 1], low * scales[2 * half]);
}

template <int bits, bool has_offset, int kRows>
__attribute__((target("avx512bf16"))) void StoredDot(const Sliver& a, const uint8_t* stored, int64_t begin, int64_t end,
                                                     const float* offset, const float* scale, float* tile) {
  __m512 offsets[kVectors], scales[kVectors], sum[kRows][2];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    offsets[i] = _mm512_loadu_ps(offset + i * kLanes);
    scales[i] = _mm512_loadu_ps(scale + i * kLanes);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = _mm512_load_ps(tile + r * kPanelColumns);
    sum[r][1] = _mm512_load_ps(tile + r * kPanelColumns + kLanes);
  }
  const char* rows = static_cast<const char*>(a.data);
  const auto add = [&](const Vec(&values)[kVectors], int64_t row) NPU_BF16_LAMBDA {
    const __m512i low = Rounded<has_offset>(values, offsets, scales, 0);
    const __m512i high = Rounded<has_offset>(values, offsets, scales, 1);
    const char* pair = rows + row / kStepsOfChunk * a.chunk_stride + row % kStepsOfChunk * 4;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      int bits_of_pair;
      __builtin_memcpy(&bits_of_pair, pair + r * a.row_stride, sizeof(bits_of_pair));
      const __m512bh of_row = (__m512bh)_mm512_set1_epi32(bits_of_pair);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], (__m512bh)low, of_row);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], (__m512bh)high, of_row);
    }
  };
  for (int64_t row = begin; row < end;) {
    __builtin_prefetch(stored + row * kStoredElements * bits / 8 + kStoredPrefetchBytes);
    Vec values[kVectors];
    if (bits == 4 && row % 2 == 0 && row + 1 < end) {
      // Two stored rows are in the halves of the same bytes.
      Vec next[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const VecI32 words = Widened<false>(stored + row / 2 * kStoredElements + i * kLanes);
        values[i] = OfNibbles(words);
        next[i] = OfNibbles(words >> 4);
      }
      add(values, row);
      add(next, row + 1);
      row += 2;
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) values[i] = LoadStored<bits>(stored, row, i * kLanes);
      add(values, row);
      ++row;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_ps(tile + r * kPanelColumns, sum[r][0]);
    _mm512_store_ps(tile + r * kPanelColumns + kLanes, sum[r][1]);
  }
}

template <int bits, bool has_offset>
StoredDotFunction OfRows(int64_t rows) {
  static constexpr StoredDotFunction kFunctions[kMostRows] = {
      &StoredDot<bits, has_offset, 1>, &StoredDot<bits, has_offset, 2>, &StoredDot<bits, has_offset, 3>,
      &StoredDot<bits, has_offset, 4>};
  return kFunctions[rows - 1];
}

}  // namespace

StoredDotFunction SelectStoredDot(int bits, bool has_offset, int64_t rows) {
  if (!Features().avx512_bf16 || rows < 1 || rows > kMostRows) return nullptr;
  if (bits == 8) return has_offset ? OfRows<8, true>(rows) : OfRows<8, false>(rows);
  return has_offset ? OfRows<4, true>(rows) : OfRows<4, false>(rows);
}

#else

StoredDotFunction SelectStoredDot(int, bool, int64_t) { return nullptr; }

#endif

}  // namespace npu::gemm
