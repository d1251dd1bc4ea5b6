// One call of an operator on the CPU with what npu tensors hold, in float32 where they hold 16-bit floats.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace npu::aten {

// Tensors of two devices beside each other, but for numbers and for indices that torch takes from the CPU.
void CheckOneDevice(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether the call has 16-bit floats and may be computed in float32: one rounding, as in the device's own kernels.
// The CPU's kernels round at every step, or do not take such floats at all.
bool WidensHalves(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Replaces the arguments on the stack by the results, as a kernel does.
void CallWidened(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace npu::aten
