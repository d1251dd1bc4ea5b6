// Distributions of random numbers, and rows of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/runtime/philox.h"

namespace npu {

inline constexpr int64_t kBlocks = 64;  // of four generator words, two elements each, that are generated at a time

// In [0, 1), with as many bits as R holds.
template <class R>
R Unit(uint64_t bits) {
  if constexpr (std::is_same_v<R, double>) return static_cast<double>(bits >> 11) * 0x1p-53;
  return static_cast<R>(bits >> 40) * static_cast<R>(0x1p-24);
}

// A distribution turns 64 random bits into an element of T. Its two parameters follow the inputs that all fills share.
struct Uniform {  // in [a, b)
  static constexpr const char* kName = "RandomUniform";
  static constexpr const char *kFirst = "from", *kSecond = "to";
  using Parameter = double;
  using Types = FloatTypes;
  template <class T, class R = ComputeType<T>>
  static T From(uint64_t bits, double from, double to) {
    const R a = static_cast<R>(from), b = static_cast<R>(to);
    const T value = static_cast<T>(a + (b - a) * Unit<R>(bits));
    return static_cast<R>(value) < b ? value : static_cast<T>(a);  // rounding must not reach the open end
  }
};

struct Normal {
  static constexpr const char* kName = "RandomNormal";
  static constexpr const char *kFirst = "mean", *kSecond = "deviation";
  using Parameter = double;
  using Types = FloatTypes;
  template <class T, class R = ComputeType<T>>
  static T From(uint64_t bits, double mean, double deviation) {
    // Box-Muller on the two halves; the first is in (0, 1], where the logarithm is finite.
    const R u = static_cast<R>((static_cast<double>(bits >> 32) + 1.0) * 0x1p-32);
    const R v = static_cast<R>(static_cast<double>(bits & 0xffffffffu) * 0x1p-32);
    const R radius = std::sqrt(R{-2} * real::Log(u));
    return static_cast<T>(static_cast<R>(mean) +
                          static_cast<R>(deviation) * radius * Cos(R{2} * std::numbers::pi_v<R> * v));
  }

 private:
  static float Cos(float x) { return math::Cos(x); }
  static double Cos(double x) { return std::cos(x); }
};

// f(i, its 64 random bits) for the elements i below n, of which the generator's blocks from `first_block` on have two
// each.
template <class F>
void ForEachBits(const Philox& generator, uint64_t first_block, int64_t n, const F& f) {
  uint32_t words[4 * kBlocks];
  for (int64_t i = 0; i < n; i += 2 * kBlocks) {
    const int64_t count = std::min(2 * kBlocks, n - i);
    generator.Fill(first_block + static_cast<uint64_t>(i / 2), (count + 1) / 2, words);
    for (int64_t k = 0; k < count; ++k) f(i + k, uint64_t{words[2 * k]} << 32 | words[2 * k + 1]);
  }
}

template <class Distribution, class T, class Parameter>
void Fill(const Philox& generator, uint64_t first_block, int64_t n, Parameter a, Parameter b, T* out) {
  ForEachBits(generator, first_block, n,
              [=](int64_t i, uint64_t bits) { out[i] = Distribution::template From<T>(bits, a, b); });
}

}  // namespace npu
