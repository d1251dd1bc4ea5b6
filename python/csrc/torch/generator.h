// The random numbers of npu tensors: Philox, a seed and a position per generator.
#pragma once

#include <ATen/core/Generator.h>

#include <memory>
#include <optional>

#include "ep/runtime/random.h"

namespace npu::aten {

const at::Generator& DefaultGenerator(int device);
at::Generator NewGenerator(int device);
// The state of `generator`, or of the device's default generator.
const std::shared_ptr<RandomSource>& SourceOf(const std::optional<at::Generator>& generator, int device);

}  // namespace npu::aten
