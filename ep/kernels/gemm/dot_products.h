// Dot products of 32 bits in each lane. In assembly: of the intrinsics, gcc 12 copies every sum of a loop at each step,
// and the copies take as long to decode as the products do.
#pragma once

#if defined(__AVX2__)

#include <immintrin.h>

namespace npu::gemm {

#if defined(__AVX512F__)

// sum += four unsigned by four signed bytes; needs VPDPBUSD.
inline void AddDotOfBytes(__m512i& sum, __m512i of_unsigned, __m512i of_signed) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(of_unsigned), "v"(of_signed));
}
// sum += two by two bfloat16, as floats; needs VDPBF16PS.
inline void AddDotOfBf16(__m512i& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

#endif

// The same of 256 bits; needs AVX-VNNI, whose encoding an assembler takes only on request.
inline void AddDotOfBytes(__m256i& sum, __m256i of_unsigned, __m256i of_signed) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(of_unsigned), "x"(of_signed));
}

}  // namespace npu::gemm

#endif
