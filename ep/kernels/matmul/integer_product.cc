#include "ep/kernels/matmul/integer_product.h"

#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/op_check.h"

namespace npu {

ZeroPoints::ZeroPoints(OpContext& ctx, const char* op, const char* name, const TensorView& given,
                       const TensorView& operand, int64_t lines, bool columns)
    : given_(given) {
  if (!given) return;
  NPU_OP_CHECK(op, given.dtype == operand.dtype, "expected ", name, " of its operand's type ", NameOf(operand.dtype),
               ", got ", NameOf(given.dtype));
  const int rank = given.shape.rank();
  if (given.elements() == 1 && rank <= 1) {
    per_line_ = false;
  } else if (rank == 1) {
    NPU_OP_CHECK(op, given.shape[0] == lines, "expected ", name, " to be a scalar or one for each of ", lines,
                 columns ? " columns" : " rows", ", got ", given.shape);
  } else {
    Shape wanted = operand.shape;
    NPU_OP_CHECK(op, wanted.rank() >= 2, "expected ", name, " of one axis at most for an operand of one axis, got ",
                 given.shape);
    wanted[wanted.rank() - (columns ? 2 : 1)] = 1;
    NPU_OP_CHECK(op, given.shape == wanted, "expected ", name, " to be a scalar, [", lines, "] or ", wanted, ", got ",
                 given.shape);
    per_matrix_ = lines;
  }
  values_ = static_cast<int32_t*>(ctx.Workspace(static_cast<size_t>(given.elements()) * sizeof(int32_t)));
}

void ZeroPoints::Load() const {
  if (!values_) return;
  for (int64_t i = 0; i < given_.elements(); ++i) values_[i] = ByteAt(given_, i);
}

bool IntegerWeight::Pack(const char* op, const TensorView& constant, Stream& stream) {
  const Shape& shape = constant.shape;
  if (!kByteTypes.Contains(constant.dtype) || shape.rank() < 2 || shape.Elements(0, shape.rank() - 2) != 1)
    return false;
  packed_.Pack(op, constant.dtype, MatrixAt(constant, 0, shape[shape.rank() - 2], shape.back()), stream);
  view_ = constant;
  view_.data = nullptr;
  return true;
}

void IntegerWeight::Multiply(const TensorView& a, const TensorView& b, const MatMulShape& s, const ZeroPoints& a_zero,
                             const ZeroPoints& b_zero, const gemm::Epilogue& epilogue, const TensorView& y) const {
  a_zero.Load();
  b_zero.Load();
  ForEachEntry(s, [&](int64_t i) {
    const int64_t left = s.AIndex(i), right = s.BIndex(i);
    const gemm::Matrix rows = MatrixAt(a, left, s.m, s.k), columns = MatrixAt(b, right, s.k, s.n);
    const gemm::Result c{y.as<char>() + BytesFor(y.dtype, i * s.m * s.n), y.dtype, s.n};
    gemm::Epilogue all = epilogue;
    all.integers.a_zero_point = a_zero.At(left);
    all.integers.b_zero_point = b_zero.At(right);
    if (packed_) {
      gemm::PackedMatrix packed = packed_.matrix(columns);
      packed.dtype = a.dtype;
      gemm::Multiply(rows, packed, c, all);
    } else {
      gemm::Multiply(a.dtype, rows, b.dtype, columns, c, all);
    }
  });
}

}  // namespace npu
