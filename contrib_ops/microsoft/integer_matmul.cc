// MatMulIntegerToFloat and DynamicQuantizeMatMul: products of 8-bit operands, scaled to floats. The first operand of
// the latter is quantised to uint8 over its range when it runs.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/matmul/integer_product.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/dynamic_uint8.h"

namespace npu {
namespace {

constexpr DTypeSet kFloat32{DType::kFloat32};

// The scale of B, one or one for each column, and the bias of the columns.
gemm::Epilogue EpilogueOf(const char* op, const TensorView& b_scale, const TensorView& bias, int64_t columns) {
  NPU_OP_CHECK(op, b_scale.elements() == 1 || b_scale.shape == Shape{columns}, "expected b_scale with one element ",
               "or of shape ", Shape{columns}, ", got ", b_scale.shape);
  NPU_OP_CHECK(op, !bias || bias.shape == Shape{columns}, "expected bias of shape ", Shape{columns}, ", got ",
               bias.shape);
  gemm::Epilogue epilogue;
  epilogue.column_scale = {b_scale.as<const float>(), b_scale.elements() == 1 ? 0 : 1};
  if (bias) epilogue.addend = {bias.data, DType::kFloat32, 0, 1};
  return epilogue;
}

// The first operand: 8-bit integers with their scale and zero point.
struct Quantized {
  TensorView values, point;
  const float* scale;
};

// Where the operators take their operands from: First, and the numbers of inputs.
struct MatMulIntegerToFloat {
  static constexpr const char* kOp = "MatMulIntegerToFloat";
  static constexpr size_t kScale = 3, kPoint = 5, kBias = 6;

  static Quantized First(OpContext& ctx) {
    const TensorView scale = ctx.Input(2);
    NPU_OP_CHECK(kOp, scale.elements() == 1, "expected one a_scale, got shape ", scale.shape);
    return {ctx.Input(0), ctx.Input(4), scale.as<const float>()};
  }
};
struct DynamicQuantizeMatMul {
  static constexpr const char* kOp = "DynamicQuantizeMatMul";
  static constexpr size_t kScale = 2, kPoint = 3, kBias = 4;

  static Quantized First(OpContext& ctx) {
    const DynamicUInt8 quantized(ctx, kOp, ctx.Input(0));
    return {quantized.values(), quantized.point(), quantized.scale()};
  }
};

template <class Op>
class ScaledProductKernel final : public Kernel {
 public:
  static constexpr const char* kOp = Op::kOp;
  explicit ScaledProductKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && weight_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView b = weight_.Of(ctx.Input(1));
    const MatMulShape s = InferMatMul(kOp, ctx.Input(0).shape, b.shape);
    gemm::Epilogue epilogue = EpilogueOf(kOp, ctx.Input(Op::kScale), ctx.Input(Op::kBias), s.n);
    const Quantized a = Op::First(ctx);
    const ZeroPoints a_zero(ctx, kOp, "a_zero_point", a.point, a.values, s.m, false);
    const ZeroPoints b_zero(ctx, kOp, "b_zero_point", ctx.Input(Op::kPoint), b, s.n, true);
    const TensorView y = ctx.Output(0, DType::kFloat32, s.output);
    if (y.elements() == 0) return;
    ctx.Launch(kOp, [this, a, b, y, s, a_zero, b_zero, epilogue]() mutable {
      epilogue.alpha = *a.scale;
      weight_.Multiply(a.values, b, s, a_zero, b_zero, epilogue, y);
    });
  }

 private:
  IntegerWeight weight_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = MatMulIntegerToFloat::kOp,
    .inputs = {Input("A", kByteTypes), Input("B", kByteTypes), Input("a_scale", kFloat32), Input("b_scale", kFloat32),
               OptionalInput("a_zero_point", kByteTypes), OptionalInput("b_zero_point", kByteTypes),
               OptionalInput("bias", kFloat32)},
    .outputs = {Output("Y", kFloat32)},
    .make = MakeKernel<ScaledProductKernel<MatMulIntegerToFloat>>,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = DynamicQuantizeMatMul::kOp,
    .inputs = {Input("A", kFloat32), Input("B", kByteTypes), Input("b_scale", kFloat32),
               OptionalInput("b_zero_point", kByteTypes), OptionalInput("bias", kFloat32)},
    .outputs = {Output("Y", kFloat32)},
    .make = MakeKernel<ScaledProductKernel<DynamicQuantizeMatMul>>,
}));

}  // namespace
}  // namespace npu
