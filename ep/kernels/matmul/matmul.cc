// MatMul (ai.onnx 1, 9, 13).
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/onnx_def.h"

namespace npu {

namespace {

class MatMulKernel : public Kernel {
 public:
  explicit MatMulKernel(const KernelInfo& info) : weight_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    const Shape& shape = constant.shape;
    // A batch of one, or a single matrix: broadcast over all of A.
    if (input != 1 || !gemm::Supports(constant.dtype) || shape.rank() < 2 || shape.Elements(0, shape.rank() - 2) != 1)
      return false;
    weight_.Pack("MatMul", constant.dtype, MatrixAt(constant, 0, shape[shape.rank() - 2], shape.back()), stream);
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0);
    const TensorView b = weight_ ? weight_view_ : ctx.Input(1);
    NPU_CHECK(a && b, "[MatMul] expected two inputs");
    NPU_CHECK(a.dtype == b.dtype, "[MatMul] expected operands of one type, got ", NameOf(a.dtype), " and ",
              NameOf(b.dtype));
    const MatMulShape s = InferMatMul("MatMul", a.shape, b.shape);
    const TensorView y = ctx.Output(0, a.dtype, s.output);
    if (!y || y.elements() == 0) return;
    if (gemm::Supports(a.dtype) && s.b_batches == 1) {  // the batch is just more rows
      const gemm::Matrix rows = MatrixAt(a, 0, s.a_batches * s.m, s.k);
      const gemm::Matrix right = MatrixAt(b, 0, s.k, s.n);
      const gemm::Result c{y.data, y.dtype, s.n};
      ctx.Launch("MatMul", [this, rows, right, c] {
        if (weight_) {
          gemm::Multiply(rows, weight_.matrix(right), c);
        } else {
          gemm::Multiply(c.dtype, rows, right, c);
        }
      });
    } else if (gemm::Supports(a.dtype)) {
      ctx.Launch("MatMul", [a, b, y, s] {
        ForEachEntry(s, [&](int64_t i) {
          gemm::Multiply(a.dtype, MatrixAt(a, s.AIndex(i), s.m, s.k), MatrixAt(b, s.BIndex(i), s.k, s.n),
                         {y.as<char>() + BytesFor(y.dtype, i * s.m * s.n), y.dtype, s.n});
        });
      });
    } else {
      ctx.Launch("MatMul", [a, b, y, s] {
        DispatchPlain("MatMul", a.dtype, [&](auto type) {
          using T = decltype(type);
          ForEachEntry(s, [&](int64_t i) {
            PlainProduct<T>(MatrixAt(a, s.AIndex(i), s.m, s.k), MatrixAt(b, s.BIndex(i), s.k, s.n),
                            y.as<T>() + i * s.m * s.n);
          });
        });
      });
    }
  }

 private:
  gemm::PackedWeight weight_;
  TensorView weight_view_;  // type and shape
};

NPU_ONNX_KERNEL({
    .type = "MatMul",
    .since = 1,
    .until = 13,
    .inputs = {Input("A", kMatrixTypes), Input("B", kMatrixTypes)},
    .outputs = {Output("Y", kMatrixTypes)},
    .make = MakeKernel<MatMulKernel>,
});

}  // namespace

}  // namespace npu
