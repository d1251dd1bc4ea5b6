// Indices for torch's own functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace npu::aten {

// `indices` as int64 where they are int32; else as they are, for torch to judge.
inline at::Tensor Int64Indices(const at::Tensor& indices) {
  return indices.scalar_type() == at::kInt ? indices.to(at::kLong) : indices;
}

}  // namespace npu::aten
