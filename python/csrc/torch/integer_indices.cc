// Operators that also accept int32 indices on an NPU; torch's own accept int64 only.
#include "python/csrc/torch/integer_indices.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/one_hot_native.h>
#include <torch/library.h>

#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor OneHot(const at::Tensor& self, int64_t classes) { return at::native::one_hot(Int64Indices(self), classes); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("one_hot", &OneHot);
}

}  // namespace
}  // namespace npu::aten
