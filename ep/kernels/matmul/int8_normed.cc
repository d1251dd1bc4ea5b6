// QuantMatMulAddRmsNorm (npu.fused): the sum of a product of integers, scaled as npu_quant_matmul does, and a residual,
// and the RMS norm of its rows. A fusion rule of the provider makes it, and the exporter.
#include "ep/kernels/matmul/int8_weight.h"
#include "ep/kernels/matmul/normed_product.h"

namespace npu {
namespace {

constexpr const char* kOp = "QuantMatMulAddRmsNorm";
constexpr size_t kResidual = 3, kGamma = 4, kRowScale = 5;

class QuantMatMulAddRmsNormKernel final : public Kernel {
 public:
  explicit QuantMatMulAddRmsNormKernel(const KernelInfo& info)
      : weight_(kOp, kRowScale, /*gated=*/false), epsilon_(info.attributes.Float("epsilon")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return weight_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView residual = ctx.Input(kResidual), gamma = ctx.Input(kGamma);
    NPU_CHECK(residual && gamma, "[", kOp, "] expected residual and gamma");
    const Int8Weight::Product product = weight_.Of(ctx);
    const Shape& shape = product.shape.output;
    NormedProduct::CheckInputs(kOp, residual, gamma, residual.dtype, shape);
    const TensorView y = ctx.Output(0, residual.dtype, shape), sum = ctx.Output(1, residual.dtype, shape);
    if ((!y && !sum) || shape.Elements() == 0) return;
    const NormedProduct normed{product.rows, product.weight, residual, gamma, y, sum, epsilon_, product.epilogue};
    ctx.Launch(kOp, [normed] { normed.Run(kOp); });
  }

 private:
  Int8Weight weight_;
  double epsilon_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("x1", Int8Weight::kInt8), Input("x2", Int8Weight::kInt8), Input("scale", Int8Weight::kScales),
               Input("residual", Int8Weight::kResults), Input("gamma", Int8Weight::kResults),
               OptionalInput("pertoken_scale", Int8Weight::kScales)},
    .outputs = {Output("Y", Int8Weight::kResults), OptionalOutput("sum", Int8Weight::kResults)},
    .attributes = {FloatAttribute("epsilon", 1e-6)},
    .make = MakeKernel<QuantMatMulAddRmsNormKernel>,
    .unsupported = [](const NodeView& node) { return UnsupportedInt8Weight(kOp, node); },
});

}  // namespace
}  // namespace npu
