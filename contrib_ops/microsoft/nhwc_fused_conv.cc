// NhwcFusedConv: FusedConv of tensors whose channels are last, by ONNX's order and back. The weight is in ONNX's order.
#include <memory>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/activation/output_activation.h"
#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/onnx_step.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "NhwcFusedConv";
constexpr DTypeSet kTypes{DType::kFloat32, DType::kFloat16};

class NhwcFusedConvKernel final : public Kernel {
 public:
  explicit NhwcFusedConvKernel(const KernelInfo& info) : node_(info) {
    node_.input_shapes = {};  // in another order than the convolution's
    conv_ = OpRegistry::Instance().Find("npu.fused", "FusedConv", 1)->make(node_);
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && conv_->PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = Moved(ctx, ctx.Input(0), false, StepContext::Scratch(ctx));
    const TensorView residual =
        ctx.Input(3) ? Moved(ctx, ctx.Input(3), false, StepContext::Scratch(ctx)) : TensorView{};
    StepContext step(ctx, {x, ctx.Input(1), ctx.Input(2), residual}, StepContext::Scratch(ctx));
    conv_->Compute(step);
    Moved(ctx, step.result(), true, StepContext::Result(ctx));
  }

 private:
  // With the channels where ONNX has them, or last.
  TensorView Moved(OpContext& ctx, const TensorView& from, bool last, StepContext::Place place) const {
    const int64_t rank = from.shape.rank();
    NPU_OP_CHECK(kOp, rank >= 3, "expected tensors [N, spatial dimensions, C], got shape ", from.shape);
    std::vector<int64_t> perm{0};
    if (!last) perm.push_back(rank - 1);
    for (int64_t d = last ? 2 : 1; d < rank - (last ? 0 : 1); ++d) perm.push_back(d);
    if (last) perm.push_back(1);
    KernelInfo node = node_;
    node.input_dtypes = {from.dtype};
    Attributes attributes;
    attributes.Set("perm", std::move(perm));
    const std::unique_ptr<Kernel> transpose = MakeStep("Transpose", 13, node, std::move(attributes));
    StepContext step(ctx, {from}, std::move(place));
    transpose->Compute(step);
    return step.result();
  }

  KernelInfo node_;
  std::unique_ptr<Kernel> conv_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("X", kTypes), Input("W", kTypes), OptionalInput("B", kTypes), OptionalInput("Z", kTypes)},
    .outputs = {Output("Y", kTypes)},
    .attributes = convolution::ConvolutionAttributes(OutputActivation::Definitions()),
    .make = MakeKernel<NhwcFusedConvKernel>,
    .unsupported = [](const NodeView& node) { return OutputActivation::WhyUnsupported(node.attributes); },
}));

}  // namespace
}  // namespace npu
