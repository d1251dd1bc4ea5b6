// ActivatedMatMul (npu.fused): activation(A · B + bias) of a constant B. A fusion rule of the provider makes it.
#include "ep/kernels/activation/output_activation.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "ActivatedMatMul";

class ActivatedMatMulKernel final : public Kernel {
 public:
  explicit ActivatedMatMulKernel(const KernelInfo& info)
      : weight_(info.float32_products), activation_(OutputActivation(kOp, info.attributes).InPlace()) {
    NPU_OP_CHECK(kOp, activation_ != nullptr, "expected an activation without numbers");
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1) return false;
    weight_.Pack(kOp, constant, stream);
    weight_shape_ = constant.shape;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), bias = ctx.Input(2);
    NPU_OP_CHECK(kOp, a && weight_, "expected the input A and a constant B");
    const MatMulShape s = InferMatMul(kOp, a.shape, weight_shape_);
    NPU_OP_CHECK(kOp, bias && bias.dtype == a.dtype && bias.shape == Shape{s.n}, "expected a bias ", NameOf(a.dtype),
                 " [", s.n, "], got ", NameOf(bias.dtype), " ", bias.shape);
    const TensorView y = ctx.Output(0, a.dtype, s.output);
    if (!y || y.elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(a.data, s.a_batches * s.m, s.k);
    const gemm::PackedMatrix packed = weight_.matrix(gemm::Matrix::RowMajor(nullptr, s.k, s.n));
    gemm::Epilogue epilogue{.activation = activation_};
    epilogue.AddBias(bias, 0);
    ctx.Launch(kOp, [rows, packed, c = gemm::Result{y.data, y.dtype, s.n}, epilogue] {
      gemm::Multiply(rows, packed, c, epilogue);
    });
  }

 private:
  gemm::PackedWeight weight_;
  Shape weight_shape_;
  OutputActivation::RowFunction activation_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("A", kFloats), Input("B", kFloats), Input("bias", kFloats)},
    .outputs = {Output("Y", kFloats)},
    .attributes = OutputActivation::Definitions(),
    .make = MakeKernel<ActivatedMatMulKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      if (!node.constant[1]) return "ActivatedMatMul of a B that is not constant is not implemented";
      return OutputActivation::WhyUnsupported(node.attributes);
    },
});

}  // namespace
}  // namespace npu
