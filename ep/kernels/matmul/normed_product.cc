// The sum A · B + residual of a constant B, of floats or quantised, and the RMS norm of its rows (npu.fused:
// MatMulAddRmsNorm, WeightQuantMatMulAddRmsNorm, QuantMatMulAddRmsNorm). A fusion rule of the provider makes them, and
// the exporter.
#include "ep/kernels/matmul/float_weight.h"
#include "ep/kernels/matmul/int8_weight.h"
#include "ep/kernels/matmul/weight_only.h"
#include "ep/kernels/normalization/add_rms_norm.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

template <class Weight>
class NormedProductKernel final : public Kernel {
 public:
  static constexpr size_t kResidual = Weight::kInputs, kGamma = kResidual + 1, kLast = kGamma + 1;

  explicit NormedProductKernel(const KernelInfo& info)
      : weight_(kOp, info, kLast, /*gated=*/false), epsilon_(info.attributes.Float("epsilon")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return weight_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView residual = ctx.Input(kResidual), gamma = ctx.Input(kGamma);
    NPU_OP_CHECK(kOp, residual && gamma, "expected residual and gamma");
    ConstantProduct product = weight_.Of(ctx);
    const Shape& shape = product.shape.output;
    const DType dtype = product.result == DType::kUndefined ? residual.dtype : product.result;
    NPU_OP_CHECK(kOp, residual.dtype == dtype && residual.shape == shape, "expected a residual ", NameOf(dtype), " ",
                 shape, ", got ", NameOf(residual.dtype), " ", residual.shape);
    NPU_OP_CHECK(kOp, gamma.dtype == dtype && gamma.shape == Shape{shape.back()}, "expected gamma ", NameOf(dtype),
                 " [", shape.back(), "], got ", NameOf(gamma.dtype), " ", gamma.shape);
    const TensorView y = ctx.Output(0, dtype, shape), sum = ctx.Output(1, dtype, shape);
    if ((!y && !sum) || shape.Elements() == 0) return;
    const int64_t columns = product.shape.n;
    // The norm reads the rounded sum, which nothing else may want: then it is where the norm will be.
    const gemm::Result c{sum ? sum.data : y.data, dtype, columns};
    product.epilogue.addend = {residual.data, residual.dtype, columns, 1};
    DispatchFloats(kOp, dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [product, c, y, gamma, epsilon = epsilon_] {
        gemm::Multiply(product.rows, product.weight, c, product.epilogue);
        const int64_t n = c.row_stride;
        if (y) RmsNorm(product.rows.rows, n, epsilon, static_cast<T*>(c.data), gamma.as<const T>(), y.as<T>());
      });
    });
  }

 private:
  static constexpr const char* kOp = Weight::kNormed;

  Weight weight_;
  double epsilon_;
};

template <class Weight>
OpDef NormedProduct() {
  OpDef def{.domain = "npu.fused",
            .type = Weight::kNormed,
            .inputs = Weight::Inputs(),
            .outputs = {Output("Y", Weight::kResults), OptionalOutput("sum", Weight::kResults)},
            .attributes = Weight::Attributes(/*gated=*/false),
            .make = MakeKernel<NormedProductKernel<Weight>>,
            .unsupported = [](const NodeView& node) -> std::string {
              const std::string why = Weight::WhyUnsupported(node, NormedProductKernel<Weight>::kLast);
              return why.empty() ? "" : Concat(Weight::kNormed, " of ", why, " is not implemented");
            }};
  for (const char* name : {"residual", "gamma"}) def.inputs.push_back(Input(name, Weight::kResults));
  for (const ArgDef& last : Weight::LastInputs()) def.inputs.push_back(last);
  def.attributes.push_back(FloatAttribute("epsilon", 1e-6));
  return def;
}

NPU_ONNX_KERNEL(NormedProduct<FloatWeight>());
NPU_ONNX_KERNEL(NormedProduct<WeightOnly>());
NPU_ONNX_KERNEL(NormedProduct<Int8Weight>());

}  // namespace
}  // namespace npu
