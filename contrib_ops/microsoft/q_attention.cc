// QAttention: Attention whose product is of 8-bit integers, scaled to floats.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/projected_attention.h"
#include "ep/kernels/matmul/integer_product.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "QAttention";
constexpr DTypeSet kFloat32{DType::kFloat32};

enum In { kInput, kWeight, kBias, kInputScale, kWeightScale, kMask, kInputPoint, kWeightPoint, kPast };

class QAttentionKernel final : public Kernel {
 public:
  explicit QAttentionKernel(const KernelInfo& info) : heads_(kOp, info) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == kWeight && constant.shape.rank() == 2 && weight_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(kInput), weight = weight_.Of(ctx.Input(kWeight));
    heads_.CheckWeights(x.shape, weight.shape, 3);
    const MatMulShape s = InferMatMul(kOp, x.shape, weight.shape);
    const TensorView bias = ctx.Input(kBias), scale = ctx.Input(kInputScale), scales = ctx.Input(kWeightScale);
    const Shape columns{s.n};
    NPU_OP_CHECK(kOp, bias.shape == columns, "expected bias of shape ", columns, ", got ", bias.shape);
    NPU_OP_CHECK(kOp, scale.elements() == 1 && (scales.elements() == 1 || scales.shape == columns),
                 "expected one input_scale and one weight_scale or ", columns, ", got shapes ", scale.shape, " and ",
                 scales.shape);
    const ZeroPoints x_zero(ctx, kOp, "input_zero_point", ctx.Input(kInputPoint), x, s.m, false);
    const ZeroPoints weight_zero(ctx, kOp, "weight_zero_point", ctx.Input(kWeightPoint), weight, s.n, true);
    gemm::Epilogue epilogue;
    epilogue.column_scale = {scales.as<const float>(), scales.elements() == 1 ? 0 : 1};
    epilogue.AddBias(bias, 0);
    const TensorView projected = heads_.Projected(ctx, x.shape, DType::kFloat32, s.n);
    if (projected.elements() > 0) {
      ctx.Launch(kOp, [=, this]() mutable {
        epilogue.alpha = *scale.as<const float>();
        weight_.Multiply(x, weight, s, x_zero, weight_zero, epilogue, projected);
      });
    }
    heads_.Attend(ctx, projected, {.mask = ctx.Input(kMask), .past = ctx.Input(kPast)});
  }

 private:
  ProjectedHeads heads_;
  IntegerWeight weight_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("input", kByteTypes), Input("weight", kByteTypes), Input("bias", kFloat32),
               Input("input_scale", kFloat32), Input("weight_scale", kFloat32),
               OptionalInput("mask_index", {DType::kInt32}), OptionalInput("input_zero_point", kByteTypes),
               OptionalInput("weight_zero_point", kByteTypes), OptionalInput("past", kFloat32)},
    .outputs = {Output("output", kFloat32), OptionalOutput("present", kFloat32)},
    .attributes = {RequiredInt("num_heads"), IntAttribute("unidirectional", 0),
                   FloatAttribute("mask_filter_value", -10000.0), FloatAttribute("scale", 0.0),
                   IntAttribute("do_rotary", 0), IntAttribute("past_present_share_buffer", 0)},
    .make = MakeKernel<QAttentionKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      if (node.attributes.Int("do_rotary") != 0) return "QAttention with a rotary embedding is not implemented";
      // It has no input for the number of rows that count.
      if (node.attributes.Int("past_present_share_buffer") != 0)
        return "QAttention with a shared cache is not implemented";
      return "";
    },
}));

}  // namespace
}  // namespace npu
