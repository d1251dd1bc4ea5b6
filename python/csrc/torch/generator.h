// The random numbers of npu tensors: Philox, a seed and a position per generator.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace npu::aten {

// Where a kernel's random numbers begin. Counter i of the kernel is counter `offset + i` of the seed.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

const at::Generator& DefaultGenerator(int device);
at::Generator NewGenerator(int device);
// Takes `counters` blocks of four 32-bit numbers out of `generator`, or of the device's default generator.
PhiloxState TakeRandom(const std::optional<at::Generator>& generator, int device, uint64_t counters);

}  // namespace npu::aten
