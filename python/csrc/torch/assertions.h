// Checks of values on the device, for which the host does not wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace npu::aten {

// Makes the stream fail with `message` unless all values, contiguous floats, are from `low` to `high` when its turn
// comes.
void AssertWithin(const at::Tensor& values, double low, double high, const std::string& message);

}  // namespace npu::aten
