// FusedMatMul: alpha * A' * B', with the last two axes of an operand transposed where the node says so.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "FusedMatMul";

Shape Transposed(Shape shape, bool transposed) {
  const int rank = shape.rank();
  if (transposed && rank >= 2) std::swap(shape[rank - 1], shape[rank - 2]);
  return shape;
}

// Matrix `index` of an operand, of which `rows` and `columns` are those after the transposition.
gemm::Matrix Operand(const TensorView& t, int64_t index, int64_t rows, int64_t columns, bool transposed) {
  return transposed ? MatrixAt(t, index, columns, rows).Transposed() : MatrixAt(t, index, rows, columns);
}

class FusedMatMulKernel final : public Kernel {
 public:
  explicit FusedMatMulKernel(const KernelInfo& info)
      : alpha_(static_cast<float>(info.attributes.Float("alpha"))),
        transpose_a_(info.attributes.Bool("transA")),
        transpose_b_(info.attributes.Bool("transB")),
        packed_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    const Shape& shape = constant.shape;
    if (input != 1 || shape.rank() < 2 || !gemm::Supports(constant.dtype) || shape.Elements(0, shape.rank() - 2) != 1)
      return false;
    const Shape transposed = Transposed(shape, transpose_b_);
    packed_.Pack(kOp, constant.dtype,
                 Operand(constant, 0, transposed[shape.rank() - 2], transposed.back(), transpose_b_), stream);
    weight_ = constant;
    weight_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = packed_ ? weight_ : ctx.Input(1);
    NPU_OP_CHECK(kOp, a.dtype == b.dtype, "expected operands of one type, got ", NameOf(a.dtype), " and ",
                 NameOf(b.dtype));
    const MatMulShape s = InferMatMul(kOp, Transposed(a.shape, transpose_a_), Transposed(b.shape, transpose_b_));
    const TensorView y = ctx.Output(0, a.dtype, s.output);
    if (y.elements() == 0) return;
    const bool transpose_a = transpose_a_ && a.shape.rank() >= 2, transpose_b = transpose_b_ && b.shape.rank() >= 2;
    ctx.Launch(kOp, [this, a, b, y, s, transpose_a, transpose_b] {
      ForEachEntry(s, [&](int64_t i) {
        const gemm::Matrix rows = Operand(a, s.AIndex(i), s.m, s.k, transpose_a);
        const gemm::Matrix columns = Operand(b, s.BIndex(i), s.k, s.n, transpose_b);
        const gemm::Result c{y.as<char>() + BytesFor(y.dtype, i * s.m * s.n), y.dtype, s.n};
        const gemm::Epilogue epilogue{.alpha = alpha_};
        if (y.dtype == DType::kFloat64) {
          double* values = static_cast<double*>(c.data);
          PlainProduct<double, double>(rows, columns, values);
          for (int64_t e = 0; e < s.m * s.n; ++e) values[e] *= alpha_;
        } else if (packed_) {
          gemm::Multiply(rows, packed_.matrix(columns), c, epilogue);
        } else {
          gemm::Multiply(y.dtype, rows, columns, c, epilogue);
        }
      });
    });
  }

 private:
  float alpha_;
  bool transpose_a_, transpose_b_;
  gemm::PackedWeight packed_;
  TensorView weight_;  // type and shape
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("A", kAllFloats), Input("B", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {FloatAttribute("alpha", 1.0), IntAttribute("transA", 0), IntAttribute("transB", 0),
                   IntAttribute("transBatchA", 0), IntAttribute("transBatchB", 0)},
    .make = MakeKernel<FusedMatMulKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      const bool batch = node.attributes.Bool("transBatchA", false) || node.attributes.Bool("transBatchB", false);
      return batch ? "FusedMatMul that transposes a batch axis is not implemented" : "";
    },
}));

}  // namespace
}  // namespace npu
