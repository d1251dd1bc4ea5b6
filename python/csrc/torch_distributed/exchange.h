// The host's copies of the tensors of one collective: filled from the device before it, copied back after it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <vector>

namespace npu::distributed {

// How the host sees a tensor. Collectives that only move data see bytes, because the transport does not know every type
// of element; those that reduce see numbers.
enum class Wire { kBytes, kNumbers };

class Exchange {
 public:
  // `device` is where all tensors are; `op` names the collective in errors.
  Exchange(const char* op, c10::Device device, Wire wire);

  using Tensors = std::vector<at::Tensor>;
  // Flat pinned tensors of the host for these. What is sent is copied on the current stream.
  Tensors Send(const Tensors& tensors) { return Stage(tensors, true, false); }
  Tensors Receive(const Tensors& tensors) { return Stage(tensors, false, true); }
  Tensors Update(const Tensors& tensors) { return Stage(tensors, true, true); }
  at::Tensor Send(const at::Tensor& tensor) { return Send(Tensors{tensor})[0]; }
  at::Tensor Receive(const at::Tensor& tensor) { return Receive(Tensors{tensor})[0]; }

  // `change` is made to each copy of the host before the ranks see it.
  void Prepare(std::function<void(at::Tensor&)> change) { prepare_ = std::move(change); }
  // To be called once all is staged; then, on any thread, the rest in this order.
  void Record();
  void WaitForInputs();
  // Copies what was received to the device, on the current stream, after `adapt` of each copy of the host.
  void CopyBack(const std::function<void(at::Tensor&)>& adapt) const;

  const char* op() const { return op_; }
  c10::Device device() const { return device_; }
  // What the collective writes, in the order of staging.
  Tensors Outputs() const;

 private:
  struct Copy {
    at::Tensor tensor, host, wire;
    bool sent, received, converted = false;
  };
  Tensors Stage(const Tensors& tensors, bool sent, bool received);

  const char* op_;
  c10::Device device_;
  Wire wire_;
  std::vector<Copy> copies_;
  std::function<void(at::Tensor&)> prepare_;
  c10::Event ready_;
};

// For a collective of npu tensors, at least one. Throws while their current stream is captured.
std::unique_ptr<Exchange> BeginExchange(const char* op, const at::Tensor& first, Wire wire);
std::unique_ptr<Exchange> BeginExchange(const char* op, const Exchange::Tensors& tensors, Wire wire = Wire::kBytes);

}  // namespace npu::distributed
