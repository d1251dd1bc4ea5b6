// The elements of a quantised panel's stored rows, as floats.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/quantized.h"
#include "ep/kernels/gemm/vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace npu::gemm {

// How far ahead of the row that is read a panel is prefetched.
inline constexpr int64_t kStoredPrefetchBytes = 2048;

// Bytes of four rows of K of a panel.
template <int bits>
inline constexpr int64_t kQuadBytes = 2 * kStoredElements * bits / 8;

// kLanes bytes as integers. The compiler's own conversion of vectors of bytes takes them apart one by one.
template <bool is_signed>
inline VecI32 Widened(const uint8_t* bytes) {
#if defined(__AVX512F__)
  const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  return (VecI32)(is_signed ? _mm512_cvtepi8_epi32(loaded) : _mm512_cvtepu8_epi32(loaded));
#elif defined(__AVX2__)
  const __m128i loaded = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return (VecI32)(is_signed ? _mm256_cvtepi8_epi32(loaded) : _mm256_cvtepu8_epi32(loaded));
#elif defined(__aarch64__)
  uint32_t loaded;
  __builtin_memcpy(&loaded, bytes, sizeof(loaded));
  const uint8x8_t lanes = vreinterpret_u8_u32(vdup_n_u32(loaded));
  if (is_signed) return (VecI32)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(lanes))));
  return (VecI32)vmovl_u16(vget_low_u16(vmovl_u8(lanes)));
#else
  VecI32 out;
  for (int i = 0; i < kLanes; ++i) out[i] = is_signed ? static_cast<int8_t>(bytes[i]) : bytes[i];
  return out;
#endif
}

// The 4-bit integers in the low bits of each lane, less 8.
inline Vec OfNibbles(VecI32 words) {
#if defined(__AVX512F__)
  // A table: the index ignores higher bits.
  const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return (Vec)_mm512_permutexvar_ps((__m512i)words, values);
#else
  return __builtin_convertvector((words & 15) - 8, Vec);
#endif
}

// The elements of a vector of a stored row, as floats.
template <int bits>
inline Vec LoadStored(const uint8_t* stored, int64_t row, int64_t at) {
  if constexpr (bits == 8) {
    return __builtin_convertvector(Widened<true>(stored + row * kStoredElements + at), Vec);
  } else {
    const VecI32 words = Widened<false>(stored + row / 2 * kStoredElements + at);
    return OfNibbles(row % 2 == 0 ? words : words >> 4);
  }
}

}  // namespace npu::gemm
