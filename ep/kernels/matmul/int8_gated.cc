// QuantGatedMatMul (npu.fused): silu(x1 · G) * (x1 · V) of integers, and a constant weight whose columns are those of G
// and then those of V, each product scaled as npu_quant_matmul does. A fusion rule of the provider makes it, and the
// exporter.
#include "ep/kernels/matmul/int8_weight.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {
namespace {

constexpr const char* kOp = "QuantGatedMatMul";
constexpr size_t kRowScale = 3;

class QuantGatedMatMulKernel final : public Kernel {
 public:
  explicit QuantGatedMatMulKernel(const KernelInfo& info)
      : weight_(kOp, kRowScale, /*gated=*/true),
        result_(ElementTypeOf(kOp, "output_dtype", info.attributes.Int("output_dtype"),
                              {TypeCode::kFloat16, TypeCode::kBFloat16})) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return weight_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    Int8Weight::Product product = weight_.Of(ctx);
    Shape& shape = product.shape.output;
    const int64_t half = product.shape.n / 2;
    shape[shape.rank() - 1] = half;
    const TensorView y = ctx.Output(0, result_, shape);
    if (!y || y.elements() == 0) return;
    product.epilogue.gated_columns = half;
    ctx.Launch(kOp, [product, c = gemm::Result{y.data, y.dtype, half}] {
      gemm::Multiply(product.rows, product.weight, c, product.epilogue);
    });
  }

 private:
  Int8Weight weight_;
  DType result_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("x1", Int8Weight::kInt8), Input("x2", Int8Weight::kInt8), Input("scale", Int8Weight::kScales),
               OptionalInput("pertoken_scale", Int8Weight::kScales)},
    .outputs = {Output("y", Int8Weight::kResults)},
    .attributes = {RequiredInt("output_dtype")},
    .make = MakeKernel<QuantGatedMatMulKernel>,
    .unsupported = [](const NodeView& node) { return UnsupportedInt8Weight(kOp, node); },
});

}  // namespace
}  // namespace npu
