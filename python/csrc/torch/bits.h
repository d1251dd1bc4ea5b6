// Elements seen as integers, so that types without kernels can be moved, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>

#include "python/csrc/torch/kernel_call.h"

namespace npu::aten {

// The tensor itself if kernels know its type; else its elements as integers of their size, a complex number as a pair.
inline at::Tensor Bits(const at::Tensor& t) {
  if (ToDType(t.scalar_type()) != DType::kUndefined) return t;
  constexpr at::ScalarType kIntegers[] = {at::kByte, at::kShort, at::kInt, at::kLong, at::kLong};
  const at::ScalarType dtype = kIntegers[std::countr_zero(static_cast<size_t>(t.element_size()))];
  return t.element_size() == 16 ? t.unsqueeze(-1).view(dtype) : t.view(dtype);
}

// Whether Bits has the tensor's shape, so that a function that only moves elements can be called with it.
inline bool MovesAsBits(const at::Tensor& t) {
  return ToDType(t.scalar_type()) == DType::kUndefined && t.element_size() <= 8;
}

}  // namespace npu::aten
