// Det (ai.onnx 11 to 22): determinants of square matrices, by elimination with partial pivoting in double.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "Det";

// The determinant of the n x n matrix `a`, which is overwritten. NaN in the matrix gives NaN, or 0 where a column of
// zeros is met before.
double Eliminate(double* a, int64_t n) {
  double product = 1;
  for (int64_t column = 0; column < n; ++column) {
    int64_t pivot = column;
    for (int64_t row = column + 1; row < n; ++row) {
      const double size = std::fabs(a[row * n + column]);
      if (size > std::fabs(a[pivot * n + column]) || size != size) pivot = row;
    }
    if (a[pivot * n + column] == 0) return 0;
    if (pivot != column) {
      std::swap_ranges(a + pivot * n + column, a + (pivot + 1) * n, a + column * n + column);
      product = -product;
    }
    const double* top = a + column * n;
    product *= top[column];
    for (int64_t row = column + 1; row < n; ++row) {
      double* below = a + row * n;
      const double factor = below[column] / top[column];
      for (int64_t i = column + 1; i < n; ++i) below[i] -= factor * top[i];
    }
  }
  return product;
}

class DetKernel final : public Kernel {
 public:
  explicit DetKernel(const KernelInfo& /*info*/) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    NPU_OP_CHECK(kOp, rank >= 2 && x.shape[rank - 1] == x.shape[rank - 2],
                 "expected square matrices [..., M, M], got shape ", x.shape);
    const TensorView y = ctx.Output(0, x.dtype, Shape(x.shape.begin(), static_cast<size_t>(rank - 2)));
    const int64_t count = y.elements(), n = x.shape.back();
    if (count == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [count, n, from = x.as<const T>(), to = y.as<T>()] {
        ParallelFor(count, RowGrain(n * n * n), [&](int64_t begin, int64_t end) {
          std::vector<double> matrix(static_cast<size_t>(n * n));
          for (int64_t i = begin; i < end; ++i) {
            for (int64_t k = 0; k < n * n; ++k) matrix[static_cast<size_t>(k)] = Upcast(from[i * n * n + k]);
            to[i] = Rounded<T>(static_cast<ComputeType<T>>(Eliminate(matrix.data(), n)));
          }
        });
      });
    });
  }
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 11,
    .until = 22,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .make = MakeKernel<DetKernel>,
});

}  // namespace
}  // namespace npu
