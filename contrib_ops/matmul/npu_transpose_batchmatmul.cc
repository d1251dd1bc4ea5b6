// npu_transpose_batchmatmul(input, weight, scale?; perm_x1, perm_x2, perm_y, batch_split_factor) -> y. The semantics
// are in npu_transpose_batchmatmul.py.
#include "contrib_ops/matmul/npu_transpose_batchmatmul.h"

#include <deque>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/scale_values.h"

namespace npu {
namespace {

using In = nodes::NPUTransposeBatchMatMul::In;
using Out = nodes::NPUTransposeBatchMatMul::Out;

constexpr const char* kOp = "npu_transpose_batchmatmul";

// Whether the permutation `name` is the second of those allowed, which are the identity or, if the result's, none.
bool IsPermuted(const Attributes& attributes, const char* name, const Shape& first, const Shape& second) {
  if (!attributes.Has(name)) return false;
  const Shape given(attributes.Ints(name));
  NPU_OP_CHECK(kOp, given == first || given == second, "expected another order of axes: ", name, " should be ", first,
               first == second ? "" : Concat(" or ", second), ", got ", given);
  return given == second;
}

class TransposeBatchMatMulKernel final : public Kernel {
 public:
  explicit TransposeBatchMatMulKernel(const KernelInfo& info)
      : rows_first_(IsPermuted(info.attributes, "perm_x1", {0, 1, 2}, {1, 0, 2})),
        transposed_(IsPermuted(info.attributes, "perm_x2", {0, 1, 2}, {0, 2, 1})),
        factor_(info.attributes.Int("batch_split_factor", 1)) {
    IsPermuted(info.attributes, "perm_y", {1, 0, 2}, {1, 0, 2});
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != In::weight || !gemm::Supports(constant.dtype) || constant.shape.rank() != 3) return false;
    const int64_t batch = constant.shape[0], n = constant.shape[transposed_ ? 1 : 2];
    // A block of columns that ends within a matrix would need panels of its own.
    const bool whole = factor_ >= 1 && batch % factor_ == 0;
    if (batch == 0 || n == 0 || !whole) return false;
    for (int64_t i = 0; i < batch; ++i) packed_.emplace_back().Pack(kOp, constant.dtype, Weight(constant, i), stream);
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input), weight = packed_.empty() ? ctx.Input(In::weight) : weight_view_;
    NPU_OP_CHECK(kOp, !ctx.Input(In::bias), "expected no bias, got one");
    NPU_OP_CHECK(kOp, x && weight && x.shape.rank() == 3 && weight.shape.rank() == 3,
                 "expected input and weight of three axes, got ", x.shape, " and ", weight.shape);
    NPU_OP_CHECK(kOp, x.dtype == weight.dtype, "expected a weight of input's dtype ", NameOf(x.dtype), ", got ",
                 NameOf(weight.dtype));
    Shape a = x.shape, b = weight.shape;
    if (rows_first_) std::swap(a[0], a[1]);
    if (transposed_) std::swap(b[1], b[2]);
    NPU_OP_CHECK(kOp, a[0] == b[0] && a[2] == b[1], "expected input [B, M, K] and weight [B, K, N] once permuted, got ",
                 a, " and ", b);
    MatMulShape s;
    s.batches = a[0];
    s.m = a[1];
    s.k = a[2];
    s.n = b[2];
    const int64_t columns = Shape({s.batches, s.n}).Elements();
    NPU_OP_CHECK(kOp, factor_ >= 1 && columns % factor_ == 0, "expected batch_split_factor to divide the ", columns,
                 " columns of all matrices, got ", factor_);
    const TensorView scale = ctx.Input(In::scale);
    NPU_OP_CHECK(kOp, !scale || factor_ == 1, "expected batch_split_factor 1 with scale, got ", factor_);
    NPU_OP_CHECK(kOp, !scale || scale.shape == Shape{columns}, "expected scale of shape [", columns, "], got ",
                 scale.shape);

    const int64_t block = columns / factor_;
    const TensorView y = scale          ? ctx.Output(Out::y, DType::kInt8, {s.m, 1, columns})
                         : factor_ == 1 ? ctx.Output(Out::y, x.dtype, {s.m, s.batches, s.n})
                                        : ctx.Output(Out::y, x.dtype, {factor_, s.m, block});
    if (!y || y.elements() == 0) return;
    const ScaleValues scales(ctx, scale);
    ctx.Launch(kOp, [this, x, weight, y, s, block, scales, has_scale = static_cast<bool>(scale)] {
      scales.Load();
      ForEachEntry(s, [&](int64_t i) {
        const gemm::Matrix left = Rows(x, s, i), right = Weight(weight, i);
        const int64_t end = (i + 1) * s.n;
        for (int64_t from = i * s.n, stop = 0; from < end; from = stop) {
          const int64_t number = from / block;
          stop = std::min(end, (number + 1) * block);
          const int64_t first = number * s.m * block + from - number * block;
          const gemm::Result c{y.as<char>() + BytesFor(y.dtype, first), y.dtype, block};
          gemm::Epilogue epilogue;
          if (has_scale) epilogue.output_scale = {scales.data() + from, 1};
          if (packed_.empty()) {
            gemm::Multiply(x.dtype, left, Columns(right, x.dtype, from - i * s.n, stop - from), c, epilogue);
          } else {
            gemm::Multiply(left, packed_[static_cast<size_t>(i)].matrix(right), c, epilogue);
          }
        }
      });
    });
  }

 private:
  gemm::Matrix Rows(const TensorView& x, const MatMulShape& s, int64_t i) const {
    gemm::Matrix rows = MatrixAt(x, rows_first_ ? 0 : i, s.m, s.k);
    if (rows_first_) {
      if (rows.data) rows.data = static_cast<const char*>(rows.data) + BytesFor(x.dtype, i * s.k);
      rows.row_stride = s.batches * s.k;
    }
    return rows;
  }

  gemm::Matrix Weight(const TensorView& weight, int64_t i) const {
    const gemm::Matrix matrix = MatrixAt(weight, i, weight.shape[1], weight.shape[2]);
    return transposed_ ? matrix.Transposed() : matrix;
  }

  static gemm::Matrix Columns(gemm::Matrix matrix, DType dtype, int64_t from, int64_t count) {
    if (matrix.data) matrix.data = static_cast<const char*>(matrix.data) + BytesFor(dtype, from * matrix.column_stride);
    matrix.columns = count;
    return matrix;
  }

  bool rows_first_, transposed_;  // input [M, B, K], weight [B, N, K]
  int64_t factor_;
  std::deque<gemm::PackedWeight> packed_;  // of each matrix
  TensorView weight_view_;                 // type and shape
};

NPU_KERNEL(NPUTransposeBatchMatMul, TransposeBatchMatMulKernel);

}  // namespace
}  // namespace npu
