// Attention and DecoderMaskedSelfAttention: one product makes queries, keys and values of the input, then each head
// attends to its own. The latter is the former of one row, with a cache that is updated in place.
#include <memory>
#include <string>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/projected_attention.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kStep = "DecoderMaskedSelfAttention";

class MicrosoftAttentionKernel final : public Kernel {
 public:
  MicrosoftAttentionKernel(const char* op, bool one_row, const KernelInfo& info)
      : heads_(op, info), projection_(info), one_row_(one_row) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && projection_.Pack(heads_.op, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const Shape& x = ctx.Input(0).shape;
    NPU_OP_CHECK(heads_.op, !one_row_ || (x.rank() == 3 && x[1] == 1), "expected input [batch, 1, hidden], got ", x);
    const TensorView projected = projection_.Launch(ctx, heads_, 3, ctx.Input(0), ctx.Input(1), ctx.Input(2));
    heads_.Attend(ctx, projected,
                  {.mask = ctx.Input(3), .past = ctx.Input(4), .past_length = ctx.Input(6), .bias = ctx.Input(5)});
  }

 private:
  ProjectedHeads heads_;
  Projection projection_;
  bool one_row_;
};

std::string WhyNot(const NodeView& node) {
  if (node.attributes.Int("do_rotary") != 0) return "Attention with a rotary embedding is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = "Attention",
    .inputs = {Input("input", kFloats), Input("weights", kFloats), OptionalInput("bias", kFloats),
               OptionalInput("mask_index", {DType::kInt32}), OptionalInput("past", kFloats),
               OptionalInput("attention_bias", kFloats), OptionalHostInput("past_sequence_length", {DType::kInt32})},
    .outputs = {Output("output", kFloats), OptionalOutput("present", kFloats)},
    .attributes = {RequiredInt("num_heads"), IntsAttribute("qkv_hidden_sizes"), IntAttribute("unidirectional", 0),
                   FloatAttribute("mask_filter_value", -10000.0), FloatAttribute("scale", 0.0),
                   IntAttribute("do_rotary", 0), IntAttribute("rotary_embedding_dim", 0),
                   IntAttribute("past_present_share_buffer", 0)},
    .may_alias = {{4, 1}},
    .make = [](const KernelInfo& info) { return std::make_unique<MicrosoftAttentionKernel>("Attention", false, info); },
    .unsupported = WhyNot,
}));

std::string WhyStepUnsupported(const NodeView& node) {
  if (node.inputs.size() > 8 && node.inputs[8] != DType::kUndefined)
    return "DecoderMaskedSelfAttention with cache_indirection is not implemented";
  if (node.attributes.Int("past_present_share_buffer") == 0)
    return "DecoderMaskedSelfAttention without a shared cache is not implemented";
  return WhyNot(node);
}

constexpr DTypeSet kStepTypes{DType::kFloat32, DType::kFloat16};

NPU_ONNX_KERNEL(Microsoft({
    .type = kStep,
    .inputs = {Input("input", kStepTypes), Input("weights", kStepTypes), Input("bias", kStepTypes),
               OptionalInput("mask_index", {DType::kInt32}), Input("past", kStepTypes),
               OptionalInput("attention_bias", kStepTypes), HostInput("past_sequence_length", {DType::kInt32}),
               OptionalHostInput("beam_width", {DType::kInt32}), OptionalInput("cache_indirection", {DType::kInt32})},
    .outputs = {Output("output", kStepTypes), Output("present", kStepTypes)},
    .attributes = {RequiredInt("num_heads"), FloatAttribute("mask_filter_value", -10000.0),
                   FloatAttribute("scale", 0.0), IntAttribute("do_rotary", 0),
                   IntAttribute("past_present_share_buffer", 0)},
    .may_alias = {{4, 1}},
    .make = [](const KernelInfo& info) { return std::make_unique<MicrosoftAttentionKernel>(kStep, true, info); },
    .unsupported = WhyStepUnsupported,
}));

}  // namespace
}  // namespace npu
