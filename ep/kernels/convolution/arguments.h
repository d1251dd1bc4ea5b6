// What Conv and ConvTranspose both require of their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu::convolution {

inline int64_t ReadGroups(const char* op, const Attributes& attributes) {
  const int64_t groups = attributes.Int("group");
  NPU_CHECK(groups > 0, "[", op, "] expected a group of 1 or more, got ", groups);
  return groups;
}

inline void CheckOperands(const char* op, const TensorView& x, const TensorView& weight, const TensorView& bias) {
  NPU_CHECK(x.shape.rank() >= 3 && weight.shape.rank() == x.shape.rank(), "[", op,
            "] expected X [N, C, spatial dimensions] and W of the same rank, got shapes ", x.shape, " and ",
            weight.shape);
  NPU_CHECK(weight.dtype == x.dtype && (!bias || bias.dtype == x.dtype), "[", op, "] expected X, W and B of one type");
}

// `out`: the channels of the output.
inline void CheckBias(const char* op, const TensorView& bias, int64_t out) {
  NPU_CHECK(!bias || bias.shape == Shape{out}, "[", op, "] expected B of shape ", Shape{out}, ", got ", bias.shape);
}

// The taps of the kernel along each spatial dimension.
inline std::vector<int64_t> KernelOf(const char* op, const Attributes& attributes, const Shape& weight) {
  const std::vector<int64_t> kernel(weight.begin() + 2, weight.end());
  NPU_CHECK(!attributes.Has("kernel_shape") || attributes.Ints("kernel_shape") == kernel, "[", op,
            "] expected kernel_shape to be W's, got another for W ", weight);
  return kernel;
}

}  // namespace npu::convolution
