// MatMulIntegerToFloat and DynamicQuantizeMatMul: products of 8-bit operands, scaled to floats. The first operand of
// the latter is quantised to uint8 over its range when it runs.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/matmul/integer_product.h"
#include "ep/kernels/quantization/dynamic_uint8.h"

namespace npu {
namespace {

constexpr DTypeSet kFloat32{DType::kFloat32};

// The scale of B, one or one for each column, and the bias of the columns.
gemm::Epilogue EpilogueOf(const char* op, const TensorView& b_scale, const TensorView& bias, int64_t columns) {
  NPU_CHECK(b_scale.elements() == 1 || b_scale.shape == Shape{columns}, "[", op, "] expected b_scale with one element ",
            "or of shape ", Shape{columns}, ", got ", b_scale.shape);
  NPU_CHECK(!bias || bias.shape == Shape{columns}, "[", op, "] expected bias of shape ", Shape{columns}, ", got ",
            bias.shape);
  gemm::Epilogue epilogue;
  epilogue.column_scale = {b_scale.as<const float>(), b_scale.elements() == 1 ? 0 : 1};
  if (bias) epilogue.addend = {bias.data, DType::kFloat32, 0, 1};
  return epilogue;
}

class IntegerToFloatKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "MatMulIntegerToFloat";
  explicit IntegerToFloatKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && weight_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = weight_.Of(ctx.Input(1)), a_scale = ctx.Input(2);
    const MatMulShape s = InferMatMul(kOp, a.shape, b.shape);
    NPU_CHECK(a_scale.elements() == 1, "[", kOp, "] expected one a_scale, got shape ", a_scale.shape);
    gemm::Epilogue epilogue = EpilogueOf(kOp, ctx.Input(3), ctx.Input(6), s.n);
    const ZeroPoints a_zero(ctx, kOp, "a_zero_point", ctx.Input(4), a, s.m, false);
    const ZeroPoints b_zero(ctx, kOp, "b_zero_point", ctx.Input(5), b, s.n, true);
    const TensorView y = ctx.Output(0, DType::kFloat32, s.output);
    if (y.elements() == 0) return;
    ctx.Launch(kOp, [this, a, b, y, s, a_zero, b_zero, epilogue, scale = a_scale.as<const float>()]() mutable {
      epilogue.alpha = *scale;
      weight_.Multiply(a, b, s, a_zero, b_zero, epilogue, y);
    });
  }

 private:
  IntegerWeight weight_;
};

class DynamicQuantizeKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "DynamicQuantizeMatMul";
  explicit DynamicQuantizeKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && weight_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), b = weight_.Of(ctx.Input(1));
    const MatMulShape s = InferMatMul(kOp, x.shape, b.shape);
    gemm::Epilogue epilogue = EpilogueOf(kOp, ctx.Input(2), ctx.Input(4), s.n);
    const DynamicUInt8 quantized(ctx, kOp, x);
    const ZeroPoints a_zero(ctx, kOp, "the range's zero point", quantized.point(), quantized.values(), s.m, false);
    const ZeroPoints b_zero(ctx, kOp, "b_zero_point", ctx.Input(3), b, s.n, true);
    const TensorView y = ctx.Output(0, DType::kFloat32, s.output);
    if (y.elements() == 0) return;
    ctx.Launch(kOp,
               [this, a = quantized.values(), scale = quantized.scale(), b, y, s, a_zero, b_zero, epilogue]() mutable {
                 epilogue.alpha = *scale;
                 weight_.Multiply(a, b, s, a_zero, b_zero, epilogue, y);
               });
  }

 private:
  IntegerWeight weight_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = "MatMulIntegerToFloat",
    .inputs = {Input("A", kByteTypes), Input("B", kByteTypes), Input("a_scale", kFloat32), Input("b_scale", kFloat32),
               OptionalInput("a_zero_point", kByteTypes), OptionalInput("b_zero_point", kByteTypes),
               OptionalInput("bias", kFloat32)},
    .outputs = {Output("Y", kFloat32)},
    .make = MakeKernel<IntegerToFloatKernel>,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = "DynamicQuantizeMatMul",
    .inputs = {Input("A", kFloat32), Input("B", kByteTypes), Input("b_scale", kFloat32),
               OptionalInput("b_zero_point", kByteTypes), OptionalInput("bias", kFloat32)},
    .outputs = {Output("Y", kFloat32)},
    .make = MakeKernel<DynamicQuantizeKernel>,
}));

}  // namespace
}  // namespace npu
