// The check that all ranks make the same call, before any data is exchanged.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace npu::distributed {

// What one rank is about to do. The transport aborts the process where two ranks exchange tensors of different sizes.
struct Signature {
  c10d::OpType type;
  int64_t detail = 0;                             // the reduction or the root
  std::vector<at::Tensor> tensors = {};           // of the same number, sizes and types on all ranks
  std::vector<int64_t> sent = {}, received = {};  // bytes to and from each rank, where ranks may differ
};

// Throws on every rank, if one of them differs; waits for all of them.
void CheckAgreement(c10d::Backend& host, const Signature& signature, std::chrono::milliseconds timeout);

}  // namespace npu::distributed
