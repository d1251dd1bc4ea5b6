// The context of a kernel that computes with another one: the same outputs, memory and stream, and other inputs.
#pragma once

#include <utility>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

class ReplacedInputs final : public OpContext {
 public:
  ReplacedInputs(OpContext& ctx, std::vector<TensorView> inputs) : ctx_(ctx), inputs_(std::move(inputs)) {}

  size_t input_count() const override { return inputs_.size(); }
  size_t output_count() const override { return ctx_.output_count(); }
  TensorView Input(size_t i) override { return i < inputs_.size() ? inputs_[i] : TensorView{}; }
  bool OutputRequested(size_t i) const override { return ctx_.OutputRequested(i); }
  TensorView Output(size_t i, DType dtype, const Shape& shape) override { return ctx_.Output(i, dtype, shape); }
  void* Workspace(size_t bytes) override { return ctx_.Workspace(bytes); }
  Stream& stream() override { return ctx_.stream(); }

 private:
  OpContext& ctx_;
  std::vector<TensorView> inputs_;
};

}  // namespace npu
