// QLinearMatMul (ai.onnx 10 and 21): the product of quantised operands, quantised.
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/matmul/integer_product.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/quantization/requantize.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "QLinearMatMul";

class QLinearMatMulKernel final : public Kernel {
 public:
  explicit QLinearMatMulKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 3 && weight_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = weight_.Of(ctx.Input(3));
    const MatMulShape s = InferMatMul(kOp, a.shape, b.shape);
    const ZeroPoints a_zero(ctx, kOp, "a_zero_point", ctx.Input(2), a, s.m, false);
    const ZeroPoints b_zero(ctx, kOp, "b_zero_point", ctx.Input(5), b, s.n, true);
    Requantization quantize(kOp, ctx.Input(1), ctx.Input(4), ctx.Input(6), ctx.Input(7), s.n);
    const TensorView y = ctx.Output(0, quantize.dtype(), s.output);
    if (y.elements() == 0) return;
    TensorView sums = y;
    sums.dtype = DType::kInt32;
    sums.data = ctx.Workspace(BytesFor(DType::kInt32, y.elements()));
    ctx.Launch(kOp, [this, a, b, y, sums, s, a_zero, b_zero, quantize]() mutable {
      quantize.Load();
      weight_.Multiply(a, b, s, a_zero, b_zero, {}, sums);
      ParallelFor(s.batches * s.m, RowGrain(s.n), [&](int64_t begin, int64_t end) {
        quantize.Rows(sums.as<const int32_t>() + begin * s.n, s.n, end - begin, nullptr, 0, s.n,
                      y.as<char>() + begin * s.n);
      });
    });
  }

 private:
  IntegerWeight weight_;
};

OpDef Definition(int version, DTypeSet scales) {
  return {
      .type = kOp,
      .since = version,
      .until = version,
      .inputs = {Input("a", kByteTypes), Input("a_scale", scales), Input("a_zero_point", kByteTypes),
                 Input("b", kByteTypes), Input("b_scale", scales), Input("b_zero_point", kByteTypes),
                 Input("y_scale", scales), Input("y_zero_point", kByteTypes)},
      .outputs = {Output("y", kByteTypes)},
      .make = MakeKernel<QLinearMatMulKernel>,
  };
}

NPU_ONNX_KERNEL(Definition(10, {DType::kFloat32}));
NPU_ONNX_KERNEL(Definition(21, kFloats));

}  // namespace
}  // namespace npu
