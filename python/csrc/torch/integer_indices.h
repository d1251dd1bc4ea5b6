// Indices for torch's own functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace npu::aten {

// Converts int32 indices to int64; leaves other types for torch to check.
inline at::Tensor Int64Indices(const at::Tensor& indices) {
  return indices.scalar_type() == at::kInt ? indices.to(at::kLong) : indices;
}

}  // namespace npu::aten
