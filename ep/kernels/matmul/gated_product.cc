// silu(A · G) * (A · V) (npu.fused: GatedMatMul, WeightQuantGatedMatMul, QuantGatedMatMul) of a constant matrix, of
// floats or quantised, whose columns are those of G and then those of V. A fusion rule of the provider makes them, and
// the exporter.
#include "ep/kernels/matmul/float_weight.h"
#include "ep/kernels/matmul/int8_weight.h"
#include "ep/kernels/matmul/weight_only.h"

namespace npu {
namespace {

template <class Weight>
class GatedProductKernel final : public Kernel {
 public:
  explicit GatedProductKernel(const KernelInfo& info)
      : weight_(Weight::kGated, info, Weight::kInputs, /*gated=*/true) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return weight_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    ConstantProduct product = weight_.Of(ctx);
    Shape& shape = product.shape.output;
    const int64_t half = product.shape.n / 2;
    shape[shape.rank() - 1] = half;
    const TensorView y = ctx.Output(0, product.result, shape);
    if (!y || y.elements() == 0) return;
    product.epilogue.gated_columns = half;
    ctx.Launch(Weight::kGated, [product, c = gemm::Result{y.data, y.dtype, half}] {
      gemm::Multiply(product.rows, product.weight, c, product.epilogue);
    });
  }

 private:
  Weight weight_;
};

template <class Weight>
OpDef GatedProduct() {
  OpDef def{.domain = "npu.fused",
            .type = Weight::kGated,
            .inputs = Weight::Inputs(),
            .outputs = {Output("Y", Weight::kResults)},
            .attributes = Weight::Attributes(/*gated=*/true),
            .make = MakeKernel<GatedProductKernel<Weight>>,
            .unsupported = [](const NodeView& node) -> std::string {
              const std::string why = Weight::WhyUnsupported(node, Weight::kInputs);
              return why.empty() ? "" : Concat(Weight::kGated, " of ", why, " is not implemented");
            }};
  for (const ArgDef& last : Weight::LastInputs()) def.inputs.push_back(last);
  return def;
}

NPU_ONNX_KERNEL(GatedProduct<FloatWeight>());
NPU_ONNX_KERNEL(GatedProduct<WeightOnly>());
NPU_ONNX_KERNEL(GatedProduct<Int8Weight>());

}  // namespace
}  // namespace npu
