// The kernels of torch.ops.npu on the autograd key of npu tensors.
#pragma once

#include <string>

namespace npu::aten {

// Dispatches calls of `name` that need no gradient directly to the kernel, the others to the gradient in Python
// (opdef/autograd.py), which is registered for every device.
void RegisterAutogradSkip(const std::string& name);

}  // namespace npu::aten
