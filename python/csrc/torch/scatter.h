// Elements written or reduced into the positions that an index gives.
#pragma once

#include <ATen/core/Tensor.h>

namespace npu::aten {

// `out` becomes `self` with the source's elements at the index's positions along `dim`; `reduction` is ONNX's: none,
// add, mul, max or min. As in torch, but not in ONNX, the source may be larger than the index. `out` has self's dtype.
void Scatter(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor source, const char* reduction,
             at::Tensor& out);

}  // namespace npu::aten
