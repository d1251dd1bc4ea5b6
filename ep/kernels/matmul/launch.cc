#include "ep/kernels/matmul/launch.h"

#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/matmul/plain_product.h"

namespace npu {

bool PackMatMulWeight(const char* op, const TensorView& constant, gemm::PackedWeight& packed, Stream& stream) {
  const Shape& shape = constant.shape;
  // A batch of one, or a single matrix: broadcast over all of A.
  if (!gemm::Supports(constant.dtype) || shape.rank() < 2 || shape.Elements(0, shape.rank() - 2) != 1) return false;
  packed.Pack(op, constant.dtype, MatrixAt(constant, 0, shape[shape.rank() - 2], shape.back()), stream);
  return true;
}

void LaunchMatMul(OpContext& ctx, const char* op, const TensorView& a, const TensorView& b,
                  const gemm::PackedWeight& packed, const MatMulShape& s, const TensorView& y) {
  if (!y || y.elements() == 0) return;
  if (gemm::Supports(a.dtype) && s.b_batches == 1) {  // the batch is just more rows
    const gemm::Matrix rows = MatrixAt(a, 0, s.a_batches * s.m, s.k);
    const gemm::Matrix right = MatrixAt(b, 0, s.k, s.n);
    const gemm::Result c{y.data, y.dtype, s.n};
    ctx.Launch(op, [&packed, rows, right, c] {
      if (packed) {
        gemm::Multiply(rows, packed.matrix(right), c);
      } else {
        gemm::Multiply(c.dtype, rows, right, c);
      }
    });
  } else if (gemm::Supports(a.dtype)) {
    ctx.Launch(op, [a, b, y, s] {
      ForEachEntry(s, [&](int64_t i) {
        gemm::Multiply(a.dtype, MatrixAt(a, s.AIndex(i), s.m, s.k), MatrixAt(b, s.BIndex(i), s.k, s.n),
                       {y.as<char>() + BytesFor(y.dtype, i * s.m * s.n), y.dtype, s.n});
      });
    });
  } else {
    ctx.Launch(op, [op, a, b, y, s] {
      DispatchPlain(op, a.dtype, [&](auto type) {
        using T = decltype(type);
        ForEachEntry(s, [&](int64_t i) {
          PlainProduct<T>(MatrixAt(a, s.AIndex(i), s.m, s.k), MatrixAt(b, s.BIndex(i), s.k, s.n),
                          y.as<T>() + i * s.m * s.n);
        });
      });
    });
  }
}

}  // namespace npu
