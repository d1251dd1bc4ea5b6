// What this machine can do at most, measured beside the kernels: multiply-adds in registers and reads from memory, on
// every thread of the pool. Ratios to these hold when the absolute figures drift with the neighbours.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <thread>

#include "ep/runtime/dtype.h"
#include "ep/runtime/isa.h"
#include "ep/runtime/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "ep/kernels/amx_tiles.h"
#endif

namespace npu::bench {

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Keeps the compiler from dropping a result.
inline void Keep(float value) { asm volatile("" ::"m"(value)); }

// One thread's share of a peak loop: returns the operations on numbers that it did.
using PeakLoop = double (*)(int64_t iterations);

#if defined(__x86_64__)

__attribute__((target("avx512f"))) inline double FmaAvx512(int64_t iterations) {
  constexpr int kSums = 24;  // enough to hide the latency of two units
  __m512 sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_ps(0.37f * static_cast<float>(i + 1));
  __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.0013f);
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(x), "+v"(y));
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_fmadd_ps(sum[i], x, y);
  }
  for (int i = 1; i < kSums; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  Keep(_mm512_cvtss_f32(sum[0]));
  return static_cast<double>(iterations) * kSums * 32;
}

__attribute__((target("avx512f,avx512bf16"))) inline double DotBf16Avx512(int64_t iterations) {
  constexpr int kSums = 24;
  __m512 sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_ps(0.37f * static_cast<float>(i + 1));
  __m512i x = _mm512_set1_epi32(0x3c1f3d2e), y = _mm512_set1_epi32(0x3b9a3c77);
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(x), "+v"(y));
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)y);
  }
  for (int i = 1; i < kSums; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  Keep(_mm512_cvtss_f32(sum[0]));
  return static_cast<double>(iterations) * kSums * 64;
}

__attribute__((target("avx512f,avx512vnni"))) inline double DotBytesAvx512(int64_t iterations) {
  constexpr int kSums = 24;
  __m512i sum[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_epi32(i);
  const __m512i x = _mm512_set1_epi32(0x3c1f3d2e), y = _mm512_set1_epi32(0x3b9a3c77);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(x), "v"(y));
  }
#pragma GCC unroll 24
  for (int i = 1; i < kSums; ++i) sum[0] = _mm512_add_epi32(sum[0], sum[i]);
  Keep(static_cast<float>(_mm512_reduce_add_epi32(sum[0])));
  return static_cast<double>(iterations) * kSums * 128;
}

__attribute__((target("avx2,fma"))) inline double FmaAvx2(int64_t iterations) {
  constexpr int kSums = 12;
  __m256 sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = _mm256_set1_ps(0.37f * static_cast<float>(i + 1));
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.0013f);
  for (int64_t n = 0; n < iterations; ++n) {
    asm volatile("" : "+x"(x), "+x"(y));
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sum[i] = _mm256_fmadd_ps(sum[i], x, y);
  }
  for (int i = 1; i < kSums; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  Keep(_mm256_cvtss_f32(sum[0]));
  return static_cast<double>(iterations) * kSums * 16;
}

// Tiles of random values: zeros would flatter. kDepth: elements of K in a lane of 32 bits.
template <class Dot, int kDepth = 2>
double DotAmx(int64_t iterations) {
  alignas(64) uint16_t values[2][512];
  uint32_t state = 12345;
  for (auto& tile : values)
    for (uint16_t& v : tile) v = static_cast<uint16_t>(0x3a00 + ((state = state * 1664525 + 1013904223) >> 23));
  amx::ConfigureFullTiles();
  amx::CompilerBarrier();
  amx::Load<4>(values[0], 64);
  amx::Load<5>(values[1], 64);
  amx::Load<6>(values[1], 64);
  amx::Load<7>(values[0], 64);
  for (int64_t n = 0; n < iterations; ++n) {
    amx::Zero<0>(), amx::Zero<1>(), amx::Zero<2>(), amx::Zero<3>();
    for (int i = 0; i < 8; ++i) {
      Dot::template Run<0, 4, 6>();
      Dot::template Run<1, 4, 7>();
      Dot::template Run<2, 5, 6>();
      Dot::template Run<3, 5, 7>();
    }
  }
  amx::Release();
  return static_cast<double>(iterations) * 32 * 16 * 16 * 32 * kDepth;
}

inline PeakLoop PeakLoopFor(DType dtype) {
  const CpuFeatures& f = Features();
  if (dtype == DType::kBFloat16 && f.amx_bf16) return &DotAmx<amx::DotBf16>;
  if (dtype == DType::kFloat16 && f.amx_fp16) return &DotAmx<amx::DotFp16>;
  if (dtype == DType::kInt8 && f.amx_int8) return &DotAmx<amx::DotInt8, 4>;
  if (dtype == DType::kBFloat16 && f.avx512_bf16) return &DotBf16Avx512;
  if (dtype == DType::kInt8 && f.avx512_vnni) return &DotBytesAvx512;
  if (f.avx512) return &FmaAvx512;
  return f.avx2 ? &FmaAvx2 : nullptr;
}

#else

inline PeakLoop PeakLoopFor(DType) { return nullptr; }

#endif

// Seconds of CPU time of the calling thread: what it did does not count the time in which another thread had its core.
inline double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Runs f(i) for every i < NumThreads(), each on a thread of its own and all at once: a range begins when all threads
// have one, so that none takes two while another wakes.
template <class F>
void OnEveryThread(const F& f) {
  const int threads = NumThreads();
  std::atomic<int> arrived{0};
  ParallelFor(threads, 1, [&](int64_t first, int64_t last) {
    // The whole range at once: the pool has one thread only.
    arrived += static_cast<int>(last - first);
    while (arrived.load() < threads) std::this_thread::yield();
    for (int64_t i = first; i < last; ++i) f(i);
  });
}

// GFLOP/s of `dtype` on all threads, over roughly a millisecond; 0 where there is no loop for this machine. The sum of
// what each thread does in a second of its own CPU time: threads that share a core for a while do not lower it.
inline double PeakGflops(DType dtype) {
  const PeakLoop loop = PeakLoopFor(dtype);
  if (!loop) return 0;
  constexpr int64_t kIterations = 100000;
  std::atomic<double> rate{0};
  OnEveryThread([&](int64_t) {
    const double begin = ThreadSeconds();
    const double operations = loop(kIterations);
    rate += operations / (ThreadSeconds() - begin);
  });
  return rate.load() * 1e-9;
}

// Reads [p, end), a multiple of 256 bytes, prefetching kAhead bytes ahead where that is not 0.
template <int64_t kAhead>
void ReadRange(const char* p, const char* end) {
  using Lane __attribute__((vector_size(64))) = uint64_t;
  Lane sum[4] = {};
  for (; p < end; p += 4 * sizeof(Lane)) {
    for (int i = 0; i < 4; ++i) {
      if constexpr (kAhead != 0) __builtin_prefetch(p + kAhead + i * 64);
      sum[i] ^= reinterpret_cast<const Lane*>(p)[i];
    }
  }
  sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
  Keep(static_cast<float>(sum[0][0]));
}

// The read loops of which the best is the limit: which one wins differs from machine to machine.
inline constexpr void (*kReadLoops[])(const char*, const char*) = {&ReadRange<0>, &ReadRange<1024>, &ReadRange<2048>,
                                                                   &ReadRange<4096>};
inline constexpr size_t kReadLoopCount = std::size(kReadLoops);

// GB/s of reading `bytes` of `data` once on all threads by kReadLoops[loop].
inline double ReadGbps(size_t loop, const void* data, size_t bytes) {
  constexpr int64_t kBlock = 64 << 10;
  const char* const base = static_cast<const char*>(data);
  const double begin = Seconds();
  ParallelFor(static_cast<int64_t>(bytes) / kBlock, 8,
              [&](int64_t first, int64_t last) { kReadLoops[loop](base + first * kBlock, base + last * kBlock); });
  return static_cast<double>(bytes / kBlock * kBlock) / (Seconds() - begin) * 1e-9;
}

}  // namespace npu::bench
