// Attention: one product makes queries, keys and values of the input, then each head attends to its own.
#include <string>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/projected_attention.h"

namespace npu {
namespace {

constexpr const char* kOp = "Attention";

class MicrosoftAttentionKernel final : public Kernel {
 public:
  explicit MicrosoftAttentionKernel(const KernelInfo& info) : heads_(kOp, info), projection_(info) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && projection_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView projected = projection_.Launch(ctx, heads_, 3, ctx.Input(0), ctx.Input(1), ctx.Input(2));
    heads_.Attend(ctx, projected,
                  {.mask = ctx.Input(3), .past = ctx.Input(4), .past_length = ctx.Input(6), .bias = ctx.Input(5)});
  }

 private:
  ProjectedHeads heads_;
  Projection projection_;
};

std::string WhyNot(const NodeView& node) {
  if (node.attributes.Int("do_rotary") != 0) return "Attention with a rotary embedding is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("input", kFloats), Input("weights", kFloats), OptionalInput("bias", kFloats),
               OptionalInput("mask_index", {DType::kInt32}), OptionalInput("past", kFloats),
               OptionalInput("attention_bias", kFloats), OptionalHostInput("past_sequence_length", {DType::kInt32})},
    .outputs = {Output("output", kFloats), OptionalOutput("present", kFloats)},
    .attributes = {RequiredInt("num_heads"), IntsAttribute("qkv_hidden_sizes"), IntAttribute("unidirectional", 0),
                   FloatAttribute("mask_filter_value", -10000.0), FloatAttribute("scale", 0.0),
                   IntAttribute("do_rotary", 0), IntAttribute("rotary_embedding_dim", 0),
                   IntAttribute("past_present_share_buffer", 0)},
    .may_alias = {{4, 1}},
    .make = MakeKernel<MicrosoftAttentionKernel>,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
