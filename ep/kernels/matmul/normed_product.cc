// MatMulAddRmsNorm (npu.fused): the sum A · B + residual of a constant B, and the RMS norm of its rows. A fusion rule
// of the provider makes it.
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/normalization/add_rms_norm.h"
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
    NPU_CHECK(residual.dtype == a.dtype && residual.shape == s.output, "[", kOp, "] expected a residual ",
              NameOf(a.dtype), " ", s.output, ", got ", NameOf(residual.dtype), " ", residual.shape);
    NPU_CHECK(gamma.dtype == a.dtype && gamma.shape == Shape{s.n}, "[", kOp, "] expected gamma ", NameOf(a.dtype), " [",
              s.n, "], got ", NameOf(gamma.dtype), " ", gamma.shape);
    const TensorView y = ctx.Output(0, a.dtype, s.output), sum = ctx.Output(1, a.dtype, s.output);
    if ((!y && !sum) || s.output.Elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(a.data, s.a_batches * s.m, s.k);
    const gemm::PackedMatrix packed = weight_.matrix(gemm::Matrix::RowMajor(nullptr, s.k, s.n));
    // The norm reads the rounded sum, which nothing else may want: then it is where the norm will be.
    const gemm::Result c{sum ? sum.data : y.data, a.dtype, s.n};
    const gemm::Epilogue epilogue{.addend = {residual.data, residual.dtype, s.n, 1}};
    DispatchFloats(kOp, a.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [rows, packed, c, epilogue, y, gamma, epsilon = epsilon_] {
        gemm::Multiply(rows, packed, c, epilogue);
        if (y) RmsNorm(rows.rows, packed.columns, epsilon, static_cast<T*>(c.data), gamma.as<const T>(), y.as<T>());
      });
    });
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
