// Operators without an NPU kernel run on the CPU: correct, slow, counted and reported.
#pragma once

#include <ATen/native/CPUFallback.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace npu::aten {

void FallBackToCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Called by an operator that has no kernel for these arguments.
template <class Op, class... Args>
decltype(auto) FallBack(Args&&... args) {
  return at::native::call_fallback_fn<&FallBackToCpu, Op>::call(std::forward<Args>(args)...);
}

std::map<std::string, int64_t> FallbackCounts();  // calls by operator, since the last reset
void ResetFallbackCounts();

}  // namespace npu::aten
