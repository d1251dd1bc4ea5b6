// WeightQuantMatMulAddRmsNorm (npu.fused): the sum x · B + residual of a constant quantised B, and the RMS norm of its
// rows. A fusion rule of the provider makes it, and the exporter.
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/matmul/normed_product.h"
#include "ep/kernels/matmul/weight_only.h"

namespace npu {
namespace {

constexpr const char* kOp = "WeightQuantMatMulAddRmsNorm";
constexpr size_t kResidual = 3, kGamma = 4, kOffset = 5;

class WeightQuantMatMulAddRmsNormKernel final : public Kernel {
 public:
  explicit WeightQuantMatMulAddRmsNormKernel(const KernelInfo& info)
      : weight_(kOp, info, kOffset, /*gated=*/false), epsilon_(info.attributes.Float("epsilon")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return weight_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(WeightOnly::kX), residual = ctx.Input(kResidual), gamma = ctx.Input(kGamma);
    weight_.Check(x);
    const MatMulShape s = InferMatMul(kOp, x.shape, weight_.matrix_shape());
    NPU_CHECK(residual && gamma, "[", kOp, "] expected residual and gamma");
    NormedProduct::CheckInputs(kOp, residual, gamma, x.dtype, s.output);
    const TensorView y = ctx.Output(0, x.dtype, s.output), sum = ctx.Output(1, x.dtype, s.output);
    if ((!y && !sum) || s.output.Elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(x.data, s.a_batches * s.m, s.k);
    const NormedProduct product{rows, weight_.matrix(x.dtype), residual, gamma, y, sum, epsilon_};
    ctx.Launch(kOp, [product] { product.Run(kOp); });
  }

 private:
  WeightOnly weight_;
  double epsilon_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("x", WeightOnly::kFloats), Input("weight", WeightOnly::kIntegers),
               Input("antiquant_scale", WeightOnly::kFloats), Input("residual", WeightOnly::kFloats),
               Input("gamma", WeightOnly::kFloats), OptionalInput("antiquant_offset", WeightOnly::kFloats)},
    .outputs = {Output("Y", WeightOnly::kFloats), OptionalOutput("sum", WeightOnly::kFloats)},
    .attributes = {IntAttribute("antiquant_group_size", 0), IntAttribute("inner_precise", 0),
                   FloatAttribute("epsilon", 1e-6)},
    .make = MakeKernel<WeightQuantMatMulAddRmsNormKernel>,
    .unsupported = [](const NodeView& node) { return UnsupportedWeightOnly(kOp, node, kOffset); },
});

}  // namespace
}  // namespace npu
