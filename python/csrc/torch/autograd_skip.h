// What torch.ops.npu does on the autograd key of npu tensors.
#pragma once

#include <string>

namespace npu::aten {

// Calls of `name` that need no gradient go straight to the kernel, the others to the gradient in Python
// (opdef/autograd.py), which is registered for every device.
void RegisterAutogradSkip(const std::string& name);

}  // namespace npu::aten
