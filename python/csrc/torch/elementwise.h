// Elementwise kernels on npu tensors, broadcast as NumPy does.
#pragma once

#include "python/csrc/torch/kernel_call.h"

namespace npu::aten {

// `a` and `b` converted to `dtype`, through the binary kernel `type`.
at::Tensor& BinaryInto(const char* type, at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b,
                       at::Tensor& out);

inline bool IsHalf(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }
inline at::ScalarType AccumulateType(at::ScalarType dtype) { return IsHalf(dtype) ? at::kFloat : dtype; }
// A scalar operand keeps its precision next to 16-bit floats: the operator computes in float, as torch does.
inline at::ScalarType ComputeType(at::ScalarType common, const at::Tensor& a, const at::Tensor& b) {
  return IsHostScalar(a) || IsHostScalar(b) ? AccumulateType(common) : common;
}
inline at::Tensor Wide(const at::Tensor& t) { return t.to(AccumulateType(t.scalar_type())); }
inline at::Tensor AtLeastOneDimension(const at::Tensor& t) { return t.dim() == 0 ? t.unsqueeze(0) : t; }

}  // namespace npu::aten
