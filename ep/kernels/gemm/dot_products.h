// Dot products of 32 bits in each lane. In assembly: of the intrinsics, gcc 12 copies every sum of a loop at each step,
// and the copies take as long to decode as the products do.
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>

namespace npu::gemm {

// sum += four unsigned by four signed bytes; needs VPDPBUSD.
inline void AddDotOfBytes(__m512i& sum, __m512i of_unsigned, __m512i of_signed) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(of_unsigned), "v"(of_signed));
}
// sum += two by two bfloat16, as floats; needs VDPBF16PS.
inline void AddDotOfBf16(__m512i& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

}  // namespace npu::gemm

#endif
