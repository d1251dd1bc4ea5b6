#include "python/csrc/torch/autograd_skip.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

namespace npu::aten {
namespace {

bool RequiresGrad(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().requires_grad();
  if (!value.isTensorList() && !value.isOptionalTensorList()) return false;
  for (const c10::IValue& element : value.toListRef())
    if (RequiresGrad(element)) return true;
  return false;
}

bool AnyRequiresGrad(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
    if (RequiresGrad(stack[i])) return true;
  return false;
}

void SkipAutograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  if (c10::GradMode::is_enabled() && AnyRequiresGrad(op, *stack)) {
    // This autograd key has the kernel for every device without one of its own.
    op.redispatchBoxed(below.add(c10::DispatchKey::AutogradOther), stack);
    return;
  }
  const at::AutoDispatchBelowAutograd guard;
  op.redispatchBoxed(below, stack);
}

}  // namespace

void RegisterAutogradSkip(const std::string& name) {
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "npu", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&SkipAutograd>());
}

}  // namespace npu::aten
