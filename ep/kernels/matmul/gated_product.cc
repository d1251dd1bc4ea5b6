// GatedMatMul (npu.fused): silu(A · G) * (A · V) of a constant B whose columns are those of G and then those of V. A
// fusion rule of the provider makes it.
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

constexpr const char* kOp = "GatedMatMul";

class GatedMatMulKernel final : public Kernel {
 public:
  explicit GatedMatMulKernel(const KernelInfo& info) : weight_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1) return false;
    const Shape& shape = constant.shape;
    NPU_CHECK(shape.rank() == 2 && shape[1] % 2 == 0, "[", kOp,
              "] expected a matrix B of an even number of columns, got ", shape);
    weight_.PackGated(kOp, constant.dtype, gemm::Matrix::RowMajor(constant.data, shape[0], shape[1]), stream);
    weight_shape_ = shape;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0);
    NPU_CHECK(a && weight_, "[", kOp, "] expected the input A and a constant B");
    MatMulShape s = InferMatMul(kOp, a.shape, weight_shape_);
    const int64_t half = s.n / 2;
    s.output[s.output.rank() - 1] = half;
    const TensorView y = ctx.Output(0, a.dtype, s.output);
    if (!y || y.elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(a.data, s.a_batches * s.m, s.k);
    const gemm::PackedMatrix packed = weight_.matrix(gemm::Matrix::RowMajor(nullptr, s.k, gemm::GatedColumns(s.n)));
    ctx.Launch(kOp, [rows, packed, c = gemm::Result{y.data, y.dtype, half}] {
      gemm::Multiply(rows, packed, c, {.gated_columns = c.row_stride});
    });
  }

 private:
  gemm::PackedWeight weight_;
  Shape weight_shape_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("A", kFloats), Input("B", kFloats)},
    .outputs = {Output("Y", kFloats)},
    .make = MakeKernel<GatedMatMulKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      return node.constant[1] ? "" : "GatedMatMul of a B that is not constant is not implemented";
    },
});

}  // namespace
}  // namespace npu
