// Calls of torch.ops.npu on npu tensors: from the dispatcher's stack to a kernel, as the definition specifies.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace npu::aten {

// What a call receives in addition to the arguments of its schema.
struct BesidesArguments {
  std::vector<at::Tensor> results;  // dense; written instead of new tensors
  int64_t seed = 0;                 // for an operator that would draw one; 0: it draws
};

// Applies to the next call of this thread.
void GiveNextCall(BesidesArguments given);

// Registers torch.ops.npu.`name`, an overload that is already defined, for npu tensors. `plan` is what
// opdef/call_plan.py derives from the definition.
void RegisterFused(const std::string& name, const pybind11::dict& plan);

}  // namespace npu::aten
