// One call of an operator on the CPU with the content of npu tensors, with 16-bit floats upcast to float32.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace npu::aten {

// Throws for tensors on different devices, except scalars and indices that torch accepts from the CPU.
void CheckOneDevice(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether the call has 16-bit floats and may be computed in float32: one rounding, as in the device's own kernels. The
// CPU's kernels round at every step, or do not support such floats.
bool UpcastsHalves(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Replaces the arguments on the stack by the results, as a kernel does.
void CallUpcast(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace npu::aten
