// Fills dense memory with random numbers. Element i of a fill is a function of the generator's state and of i alone,
// whatever the threads and the instruction set.
#pragma once

#include <cstdint>

#include "ep/runtime/random.h"
#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu::aten {

struct RandomFill {
  enum class Kind { kUniform, kNormal, kExponential, kInteger } kind;
  RandomPosition position{};
  // Uniform: in [a, b). Normal: mean a, deviation b. Exponential: rate a.
  double a = 0, b = 1;
  // Integer: first + [0, range), all 64 bits where range is 0.
  int64_t first = 0;
  uint64_t range = 0;
};

// Counters of the generator that a fill of n elements uses up.
inline uint64_t CountersFor(int64_t n) { return (static_cast<uint64_t>(n) + 1) / 2; }

// `out` is any type of kFixedWidth.
void LaunchRandomFill(Stream& stream, const RandomFill& fill, const TensorView& out);

}  // namespace npu::aten
