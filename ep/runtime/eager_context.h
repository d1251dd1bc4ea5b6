// OpContext of an eager call: the caller's tensors, outputs from the caller's allocator.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ep/runtime/kernel.h"

namespace npu {

class EagerContext final : public OpContext {
 public:
  // Returns memory for output i that outlives the launched work; may be null when it has no elements.
  using AllocateOutput = std::function<void*(size_t i, DType dtype, const Shape& shape)>;

  EagerContext(Stream& stream, std::vector<TensorView> inputs, size_t output_count, AllocateOutput allocate);
  ~EagerContext() override;

  // Makes `output` share the buffer of `input`.
  void WriteInPlace(size_t output, size_t input);

  // Runs the kernel; writes inputs and outputs to files if a dump of `op` is enabled.
  void Run(const Kernel& kernel, const std::string& op);
  // The same with a kernel that the caller may release immediately: the queued work keeps it.
  void RunKept(std::shared_ptr<const Kernel> kernel, const std::string& op);

  size_t input_count() const override { return inputs_.size(); }
  size_t output_count() const override { return outputs_.size(); }
  TensorView Input(size_t i) override { return i < inputs_.size() ? inputs_[i] : TensorView{}; }
  bool OutputRequested(size_t i) const override { return i < outputs_.size(); }
  TensorView Output(size_t i, DType dtype, const Shape& shape) override;
  void* Workspace(size_t bytes) override;
  Stream& stream() override { return stream_; }

 private:
  struct OutputState {
    TensorView view;
    int in_place_of = -1;
  };
  Stream& stream_;
  std::vector<TensorView> inputs_;
  std::vector<OutputState> outputs_;
  AllocateOutput allocate_;
  std::vector<void*> workspaces_;
};

}  // namespace npu
