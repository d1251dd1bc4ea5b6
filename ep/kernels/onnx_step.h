// Kernels of other operators as steps of one that computes the same with something before or after it.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The kernel of ONNX's operator `type` as of opset version `version`, for a step of `node`.
inline std::unique_ptr<Kernel> MakeStep(const char* type, int version, const KernelInfo& node, Attributes attributes) {
  const OpDef* def = OpRegistry::Instance().Find("", type, version);
  NPU_OP_CHECK(node.op_type, def != nullptr, "expected a kernel of ", type);
  KernelInfo step = node;
  step.op_type = type;
  step.since_version = version;
  step.attributes = std::move(attributes);
  return def->make(step);
}

// What a step sees: the inputs that it is given, and one output, where `place` puts it.
class StepContext final : public OpContext {
 public:
  using Place = std::function<TensorView(DType, const Shape&)>;

  StepContext(OpContext& ctx, std::vector<TensorView> inputs, Place place)
      : ctx_(ctx), inputs_(std::move(inputs)), place_(std::move(place)) {}

  // In scratch memory; as the operator's output 0; over `y`, which an elementwise step reads.
  static Place Scratch(OpContext& ctx) {
    return [&ctx](DType dtype, const Shape& shape) -> TensorView {
      return {ctx.Workspace(BytesFor(dtype, shape.Elements())), dtype, true, shape};
    };
  }
  static Place Result(OpContext& ctx) {
    return [&ctx](DType dtype, const Shape& shape) { return ctx.Output(0, dtype, shape); };
  }
  static Place Over(const TensorView& y) {
    return [y](DType dtype, const Shape& shape) {
      NPU_CHECK(dtype == y.dtype && shape == y.shape, "expected a step that keeps the shape ", y.shape, ", got ",
                shape);
      return y;
    };
  }

  size_t input_count() const override { return inputs_.size(); }
  size_t output_count() const override { return 1; }
  TensorView Input(size_t i) override { return i < inputs_.size() ? inputs_[i] : TensorView{}; }
  bool OutputRequested(size_t i) const override { return i == 0; }
  TensorView Output(size_t i, DType dtype, const Shape& shape) override {
    if (i == 0) result_ = place_(dtype, shape);
    return i == 0 ? result_ : TensorView{};
  }
  void* Workspace(size_t bytes) override { return ctx_.Workspace(bytes); }
  Stream& stream() override { return ctx_.stream(); }

  const TensorView& result() const { return result_; }

 private:
  OpContext& ctx_;
  std::vector<TensorView> inputs_;
  Place place_;
  TensorView result_;
};

}  // namespace npu
