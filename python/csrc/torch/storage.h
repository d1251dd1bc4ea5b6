// The bytes behind npu tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace npu::aten {

// Allocates new memory of `bytes` and copies the content that fits, in order of the current stream.
void ResizeStorage(c10::StorageImpl& storage, size_t bytes);

// Throws if elements of `tensor` lie beyond its storage, as storage.resize_(0) leaves them, by which FSDP frees
// parameters. The host NPU shares the address space of the process, which an access there would end.
void CheckWithinStorage(const at::Tensor& tensor);

at::Tensor Empty(at::IntArrayRef size, at::ScalarType dtype, const at::Tensor& beside);  // dense, on its device

}  // namespace npu::aten
