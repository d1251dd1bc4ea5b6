// Attention: one product makes queries, keys and values of the input, then each head attends to its own.
#include <optional>
#include <string>
#include <vector>

#include "contrib_ops/microsoft/head_attention.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/projected_attention.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/launch.h"

namespace npu {
namespace {

constexpr const char* kOp = "Attention";

class MicrosoftAttentionKernel final : public Kernel {
 public:
  explicit MicrosoftAttentionKernel(const KernelInfo& info) : heads_(kOp, info), packed_(info.float32_products) {
    if (info.attributes.Has("qkv_hidden_sizes")) heads_.sizes = info.attributes.Ints("qkv_hidden_sizes");
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1 || constant.shape.rank() != 2 || !PackMatMulWeight(kOp, constant, packed_, stream)) return false;
    weight_ = constant;
    weight_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), weights = packed_ ? weight_ : ctx.Input(1), bias = ctx.Input(2);
    heads_.CheckWeights(x.shape, weights.shape);
    const Shape columns{weights.shape[1]};
    NPU_CHECK(weights.dtype == x.dtype && (!bias || (bias.dtype == x.dtype && bias.shape == columns)), "[", kOp,
              "] expected weights and bias ", columns, " of the input's type, got ", NameOf(weights.dtype), " and ",
              bias.shape);
    const TensorView projected = heads_.Projected(ctx, x.shape, x.dtype, columns[0]);
    if (projected.elements() > 0) {
      ctx.Launch(kOp, [this, x, weights, bias, projected] {
        const gemm::Matrix rows = gemm::Matrix::RowMajor(x.data, x.shape[0] * x.shape[1], x.shape[2]);
        const gemm::Matrix right = gemm::Matrix::RowMajor(weights.data, weights.shape[0], weights.shape[1]);
        const gemm::Result result{projected.data, projected.dtype, right.columns};
        gemm::Epilogue epilogue;
        if (bias) epilogue.AddBias(bias, 0);
        if (packed_) {
          gemm::Multiply(rows, packed_.matrix(right), result, epilogue);
        } else {
          gemm::Multiply(x.dtype, rows, right, result, epilogue);
        }
      });
    }
    heads_.Attend(ctx, projected,
                  {.mask = ctx.Input(3), .past = ctx.Input(4), .past_length = ctx.Input(6), .bias = ctx.Input(5)});
  }

 private:
  ProjectedHeads heads_;
  gemm::PackedWeight packed_;
  TensorView weight_;  // type and shape
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
