// The order of columns in four stored rows of a panel that two shuffles brought together: of 32, the first vector has 0
// to 3, 8 to 11, 16 to 19 and 24 to 27, the second the others.
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>

namespace npu::gemm {

// Columns 0 to 15 of two such vectors.
inline __m512i FirstColumns(__m512i first, __m512i second) {
  const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  return _mm512_permutex2var_epi32(first, order, second);
}
// Columns 16 to 31.
inline __m512i LastColumns(__m512i first, __m512i second) {
  const __m512i order = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  return _mm512_permutex2var_epi32(first, order, second);
}

}  // namespace npu::gemm

#endif
