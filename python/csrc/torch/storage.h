// The bytes behind npu tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace npu::aten {

// Allocates new memory of `bytes` and copies the content that fits, in order of the current stream.
void ResizeStorage(c10::StorageImpl& storage, size_t bytes);

at::Tensor Empty(at::IntArrayRef size, at::ScalarType dtype, const at::Tensor& beside);  // dense, on its device

}  // namespace npu::aten
