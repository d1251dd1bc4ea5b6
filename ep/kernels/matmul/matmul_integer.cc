// MatMulInteger (ai.onnx 10): 8-bit operands less their zero points, summed in int32.
#include "ep/kernels/matmul/integer_product.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "MatMulInteger";

class MatMulIntegerKernel final : public Kernel {
 public:
  explicit MatMulIntegerKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && weight_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = weight_.Of(ctx.Input(1));
    NPU_OP_CHECK(kOp, a && b && kByteTypes.Contains(a.dtype) && kByteTypes.Contains(b.dtype),
                 "expected two operands of int8 or uint8");
    const MatMulShape s = InferMatMul(kOp, a.shape, b.shape);
    const ZeroPoints a_zero(ctx, kOp, "a_zero_point", ctx.Input(2), a, s.m, false);
    const ZeroPoints b_zero(ctx, kOp, "b_zero_point", ctx.Input(3), b, s.n, true);
    const TensorView y = ctx.Output(0, DType::kInt32, s.output);
    if (!y || y.elements() == 0) return;
    ctx.Launch(kOp, [this, a, b, y, s, a_zero, b_zero] { weight_.Multiply(a, b, s, a_zero, b_zero, {}, y); });
  }

 private:
  IntegerWeight weight_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 10,
    .until = 10,
    .inputs = {Input("A", kByteTypes), Input("B", kByteTypes), OptionalInput("a_zero_point", kByteTypes),
               OptionalInput("b_zero_point", kByteTypes)},
    .outputs = {Output("Y", {DType::kInt32})},
    .make = MakeKernel<MatMulIntegerKernel>,
});

}  // namespace
}  // namespace npu
