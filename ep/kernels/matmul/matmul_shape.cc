#include "ep/kernels/matmul/matmul_shape.h"

#include "ep/kernels/op_check.h"

namespace npu {

namespace {

// Strides of an operand's leading axes, aligned to the right of `batch`.
Shape BatchStrides(const Shape& operand, const Shape& batch) {
  Shape strides = batch;
  int64_t stride = 1;
  for (int axis = batch.rank() - 1, own = operand.rank() - 1; axis >= 0; --axis, --own) {
    const bool broadcast = own < 0 || operand[own] == 1;
    strides[axis] = broadcast ? 0 : stride;
    if (!broadcast) stride *= operand[own];
  }
  return strides;
}

}  // namespace

MatMulShape InferMatMul(const char* op, const Shape& a, const Shape& b) {
  NPU_OP_CHECK(op, a.rank() >= 1 && b.rank() >= 1, "expected operands of rank >= 1, got ", a, " and ", b);
  MatMulShape s;
  const bool row = a.rank() == 1, column = b.rank() == 1;
  s.m = row ? 1 : a[a.rank() - 2];
  s.k = a.back();
  s.n = column ? 1 : b.back();
  const int64_t b_rows = column ? b[0] : b[b.rank() - 2];
  NPU_OP_CHECK(op, s.k == b_rows, "expected as many columns of the first operand as rows of the second, got ", a,
               " and ", b);

  const Shape a_batch(a.begin(), static_cast<size_t>(row ? 0 : a.rank() - 2));
  const Shape b_batch(b.begin(), static_cast<size_t>(column ? 0 : b.rank() - 2));
  s.batch = BroadcastShapes(op, a_batch, b_batch);
  s.a_strides = BatchStrides(a_batch, s.batch);
  s.b_strides = BatchStrides(b_batch, s.batch);
  s.batches = s.batch.Elements();
  s.a_batches = a_batch.Elements();
  s.b_batches = b_batch.Elements();
  s.output = s.batch;
  if (!row) s.output.push_back(s.m);
  if (!column) s.output.push_back(s.n);
  return s;
}

}  // namespace npu
