// MatMul (ai.onnx 1, 9, 13).
#include "ep/kernels/matmul/launch.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/onnx_def.h"

namespace npu {

namespace {

class MatMulKernel : public Kernel {
 public:
  explicit MatMulKernel(const KernelInfo& info) : weight_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1 || !PackMatMulWeight("MatMul", constant, weight_, stream)) return false;
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0);
    const TensorView b = weight_ ? weight_view_ : ctx.Input(1);
    NPU_CHECK(a && b, "[MatMul] expected two inputs");
    NPU_CHECK(a.dtype == b.dtype, "[MatMul] expected operands of one type, got ", NameOf(a.dtype), " and ",
              NameOf(b.dtype));
    const MatMulShape s = InferMatMul("MatMul", a.shape, b.shape);
    const TensorView y = ctx.Output(0, a.dtype, s.output);
    LaunchMatMul(ctx, "MatMul", a, b, weight_, s, y);
  }

 private:
  gemm::PackedWeight weight_;
  TensorView weight_view_;  // type and shape
};

NPU_ONNX_KERNEL({
    .type = "MatMul",
    .since = 1,
    .until = 13,
    .inputs = {Input("A", kMatrixTypes), Input("B", kMatrixTypes)},
    .outputs = {Output("Y", kMatrixTypes)},
    .make = MakeKernel<MatMulKernel>,
});

}  // namespace

}  // namespace npu
