// WeightQuantGatedMatMul (npu.fused): silu(x · G) * (x · V) of a constant quantised weight whose columns are those of G
// and then those of V. A fusion rule of the provider makes it, and the exporter.
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/matmul/weight_only.h"

namespace npu {
namespace {

constexpr const char* kOp = "WeightQuantGatedMatMul";
constexpr size_t kOffset = 3;

class WeightQuantGatedMatMulKernel final : public Kernel {
 public:
  explicit WeightQuantGatedMatMulKernel(const KernelInfo& info) : weight_(kOp, info, kOffset, /*gated=*/true) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return weight_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(WeightOnly::kX);
    weight_.Check(x);
    MatMulShape s = InferMatMul(kOp, x.shape, weight_.matrix_shape());
    const int64_t half = s.n / 2;
    s.output[s.output.rank() - 1] = half;
    const TensorView y = ctx.Output(0, x.dtype, s.output);
    if (!y || y.elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(x.data, s.a_batches * s.m, s.k);
    ctx.Launch(kOp, [rows, packed = weight_.matrix(x.dtype), c = gemm::Result{y.data, y.dtype, half}] {
      gemm::Multiply(rows, packed, c, {.gated_columns = c.row_stride});
    });
  }

 private:
  WeightOnly weight_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("x", WeightOnly::kFloats), Input("weight", WeightOnly::kIntegers),
               Input("antiquant_scale", WeightOnly::kFloats), OptionalInput("antiquant_offset", WeightOnly::kFloats)},
    .outputs = {Output("y", WeightOnly::kFloats)},
    .attributes = {IntAttribute("antiquant_group_size", 0), IntAttribute("inner_precise", 0)},
    .make = MakeKernel<WeightQuantGatedMatMulKernel>,
    .unsupported = [](const NodeView& node) { return UnsupportedWeightOnly(kOp, node, kOffset); },
});

}  // namespace
}  // namespace npu
