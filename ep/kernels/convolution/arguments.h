// What the convolutions share of their arguments.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/pooling/windows.h"
#include "ep/runtime/kernel_api.h"

namespace npu::convolution {

inline int64_t ReadGroups(const char* op, const Attributes& attributes) {
  const int64_t groups = attributes.Int("group");
  NPU_OP_CHECK(op, groups > 0, "expected a group of 1 or more, got ", groups);
  return groups;
}

inline void CheckOperands(const char* op, const TensorView& x, const TensorView& weight, const TensorView& bias) {
  NPU_OP_CHECK(op, x.shape.rank() >= 3 && weight.shape.rank() == x.shape.rank(),
               "expected X [N, C, spatial dimensions] and W of the same rank, got shapes ", x.shape, " and ",
               weight.shape);
  NPU_OP_CHECK(op, weight.dtype == x.dtype && (!bias || bias.dtype == x.dtype), "expected X, W and B of one type");
}

// `out`: the channels of the output.
inline void CheckBias(const char* op, const TensorView& bias, int64_t out) {
  NPU_OP_CHECK(op, !bias || bias.shape == Shape{out}, "expected B of shape ", Shape{out}, ", got ", bias.shape);
}

// The taps of the kernel along each spatial dimension.
inline std::vector<int64_t> KernelOf(const char* op, const Attributes& attributes, const Shape& weight) {
  const std::vector<int64_t> kernel(weight.begin() + 2, weight.end());
  NPU_OP_CHECK(op, !attributes.Has("kernel_shape") || attributes.Ints("kernel_shape") == kernel,
               "expected kernel_shape to be W's, got another for W ", weight);
  return kernel;
}

// The axes of a convolution of X with W.
inline std::vector<pooling::Axis> AxesOf(const char* op, const Attributes& attributes, const Shape& x,
                                         const Shape& weight) {
  const std::vector<int64_t> kernel = KernelOf(op, attributes, weight);
  for (const int64_t size : kernel) NPU_OP_CHECK(op, size > 0, "expected a kernel with taps, got W ", weight);
  return pooling::Sliding(op, attributes, kernel).AxesOf(x);
}

// The attributes that all have, and `more`.
inline std::vector<AttrDef> ConvolutionAttributes(std::vector<AttrDef> more = {}) {
  std::vector<AttrDef> attributes{IntsAttribute("kernel_shape"),
                                  IntsAttribute("strides"),
                                  IntsAttribute("pads"),
                                  IntsAttribute("dilations"),
                                  StringAttribute("auto_pad", "NOTSET"),
                                  IntAttribute("group", 1)};
  for (AttrDef& attribute : more) attributes.push_back(std::move(attribute));
  return attributes;
}

}  // namespace npu::convolution
