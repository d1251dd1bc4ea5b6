// MatMulAddRmsNorm (npu.fused): the sum A · B + residual of a constant B, and the RMS norm of its rows. A fusion rule
// of the provider makes it.
#include "ep/kernels/matmul/normed_product.h"

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

constexpr const char* kOp = "MatMulAddRmsNorm";

class MatMulAddRmsNormKernel final : public Kernel {
 public:
  explicit MatMulAddRmsNormKernel(const KernelInfo& info)
      : weight_(info.float32_products), epsilon_(info.attributes.Float("epsilon")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1) return false;
    weight_.Pack(kOp, constant, stream);
    weight_shape_ = constant.shape;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), residual = ctx.Input(2), gamma = ctx.Input(3);
    NPU_CHECK(a && residual && gamma && weight_, "[", kOp, "] expected A, a constant B, residual and gamma");
    const MatMulShape s = InferMatMul(kOp, a.shape, weight_shape_);
    NormedProduct::CheckInputs(kOp, residual, gamma, a.dtype, s.output);
    const TensorView y = ctx.Output(0, a.dtype, s.output), sum = ctx.Output(1, a.dtype, s.output);
    if ((!y && !sum) || s.output.Elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(a.data, s.a_batches * s.m, s.k);
    const gemm::PackedMatrix packed = weight_.matrix(gemm::Matrix::RowMajor(nullptr, s.k, s.n));
    const NormedProduct product{rows, packed, residual, gamma, y, sum, epsilon_};
    ctx.Launch(kOp, [product] { product.Run(kOp); });
  }

 private:
  gemm::PackedWeight weight_;
  Shape weight_shape_;
  double epsilon_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("A", kFloats), Input("B", kFloats), Input("residual", kFloats), Input("gamma", kFloats)},
    .outputs = {Output("Y", kFloats), OptionalOutput("sum", kFloats)},
    .attributes = {FloatAttribute("epsilon", 1e-6)},
    .make = MakeKernel<MatMulAddRmsNormKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      return node.constant[1] ? "" : "MatMulAddRmsNorm of a B that is not constant is not implemented";
    },
});

}  // namespace
}  // namespace npu
