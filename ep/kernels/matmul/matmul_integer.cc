// MatMulInteger (ai.onnx 10): 8-bit operands less their zero points, summed in int32.
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/onnx_def.h"

namespace npu {

namespace {

constexpr const char* kOp = "MatMulInteger";
constexpr DTypeSet kBytes{DType::kInt8, DType::kUInt8};
constexpr DTypeSet kSums{DType::kInt32};

// The zero points of one operand, as int32: one for all of it, or one for each of its rows or columns (`lines`).
class ZeroPoints {
 public:
  // `matrices`: of the operand, `line_axis`: which of the last two axes has the lines.
  ZeroPoints(OpContext& ctx, const char* name, const TensorView& given, const TensorView& operand, int64_t lines,
             bool columns)
      : given_(given) {
    if (!given) return;
    NPU_CHECK(given.dtype == operand.dtype, "[", kOp, "] expected ", name, " of its operand's type ",
              NameOf(operand.dtype), ", got ", NameOf(given.dtype));
    const int rank = given.shape.rank();
    if (given.elements() == 1 && rank <= 1) {
      per_line_ = false;
    } else if (rank == 1) {
      NPU_CHECK(given.shape[0] == lines, "[", kOp, "] expected ", name, " to be a scalar or one for each of ", lines,
                columns ? " columns" : " rows", ", got ", given.shape);
    } else {
      Shape wanted = operand.shape;
      NPU_CHECK(wanted.rank() >= 2, "[", kOp, "] expected ", name,
                " of one axis at most for an operand of one axis, got ", given.shape);
      wanted[wanted.rank() - (columns ? 2 : 1)] = 1;
      NPU_CHECK(given.shape == wanted, "[", kOp, "] expected ", name, " to be a scalar, [", lines, "] or ", wanted,
                ", got ", given.shape);
      per_matrix_ = lines;
    }
    values_ = static_cast<int32_t*>(ctx.Workspace(given.elements() * static_cast<int64_t>(sizeof(int32_t))));
  }

  // In the launch, before At.
  void Load() const {
    if (!values_) return;
    for (int64_t i = 0; i < given_.elements(); ++i)
      values_[i] = given_.dtype == DType::kInt8 ? given_.as<int8_t>()[i] : given_.as<uint8_t>()[i];
  }
  gemm::PerLine<int32_t> At(int64_t matrix) const {
    if (!values_) return {};
    return {values_ + matrix * per_matrix_, per_line_ ? 1 : 0};
  }

 private:
  TensorView given_;
  int32_t* values_ = nullptr;
  int64_t per_matrix_ = 0;
  bool per_line_ = true;
};

class MatMulIntegerKernel final : public Kernel {
 public:
  explicit MatMulIntegerKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    const Shape& shape = constant.shape;
    if (input != 1 || !kBytes.Contains(constant.dtype) || shape.rank() < 2 || shape.Elements(0, shape.rank() - 2) != 1)
      return false;
    weight_.Pack(kOp, constant.dtype, MatrixAt(constant, 0, shape[shape.rank() - 2], shape.back()), stream);
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = weight_ ? weight_view_ : ctx.Input(1);
    NPU_CHECK(a && b && kBytes.Contains(a.dtype) && kBytes.Contains(b.dtype), "[", kOp,
              "] expected two operands of int8 or uint8");
    const MatMulShape s = InferMatMul(kOp, a.shape, b.shape);
    const ZeroPoints a_zero(ctx, "a_zero_point", ctx.Input(2), a, s.m, false);
    const ZeroPoints b_zero(ctx, "b_zero_point", ctx.Input(3), b, s.n, true);
    const TensorView y = ctx.Output(0, DType::kInt32, s.output);
    if (!y || y.elements() == 0) return;
    ctx.Launch(kOp, [this, a, b, y, s, a_zero, b_zero] {
      a_zero.Load();
      b_zero.Load();
      ForEachEntry(s, [&](int64_t i) {
        const int64_t left = s.AIndex(i), right = s.BIndex(i);
        const gemm::Matrix rows = MatrixAt(a, left, s.m, s.k), columns = MatrixAt(b, right, s.k, s.n);
        const gemm::Result c{y.as<int32_t>() + i * s.m * s.n, DType::kInt32, s.n};
        const gemm::Epilogue epilogue{.integers = {.a_zero_point = a_zero.At(left), .b_zero_point = b_zero.At(right)}};
        if (weight_) {
          gemm::PackedMatrix packed = weight_.matrix(columns);
          packed.dtype = a.dtype;
          gemm::Multiply(rows, packed, c, epilogue);
        } else {
          gemm::Multiply(a.dtype, rows, b.dtype, columns, c, epilogue);
        }
      });
    });
  }

 private:
  gemm::PackedWeight weight_;
  TensorView weight_view_;  // type and shape
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 10,
    .until = 10,
    .inputs = {Input("A", kBytes), Input("B", kBytes), OptionalInput("a_zero_point", kBytes),
               OptionalInput("b_zero_point", kBytes)},
    .outputs = {Output("Y", kSums)},
    .make = MakeKernel<MatMulIntegerKernel>,
});

}  // namespace

}  // namespace npu
