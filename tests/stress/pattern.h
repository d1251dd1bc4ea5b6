// The content of a buffer: element i is base + i * step, modulo 2^64. The operations of the stress program preserve
// this form, so two numbers determine all elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "ep/runtime/error.h"

namespace npu::stress {

struct Pattern {
  uint64_t base = 0, step = 0;

  uint64_t At(size_t i) const { return base + i * step; }
  Pattern Scaled(uint64_t factor, uint64_t plus) const { return {base * factor + plus, step * factor}; }
  Pattern Plus(const Pattern& other) const { return {base + other.base, step + other.step}; }
};

// The content of host memory before a copy has run.
inline constexpr Pattern kUntouched{0xdead'beef'0bad'f00d, 0};

inline void Fill(uint64_t* to, size_t count, Pattern pattern) {
  for (size_t i = 0; i < count; ++i) to[i] = pattern.At(i);
}
inline void Scale(uint64_t* data, size_t count, uint64_t factor, uint64_t plus) {
  for (size_t i = 0; i < count; ++i) data[i] = data[i] * factor + plus;
}
inline void Mix(uint64_t* to, const uint64_t* from, size_t count, uint64_t factor) {
  for (size_t i = 0; i < count; ++i) to[i] = to[i] * factor + from[i];
}
// Where memory differs from the pattern; empty: nowhere.
inline std::string Mismatch(const uint64_t* data, size_t count, Pattern pattern) {
  for (size_t i = 0; i < count; ++i)
    if (data[i] != pattern.At(i))
      return Concat("element ", i, " of ", count, ": expected ", pattern.At(i), ", got ", data[i]);
  return {};
}

}  // namespace npu::stress
