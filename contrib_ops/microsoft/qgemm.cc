// QGemm: alpha * a_scale * b_scale * (A' * B' + C) of 8-bit integers and a C of int32, as floats or quantised.
#include <optional>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/quantized_tensor.h"
#include "ep/kernels/matmul/integer_product.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "QGemm";
constexpr DTypeSet kFloat32{DType::kFloat32};

enum In { kA, kAScale, kAPoint, kB, kBScale, kBPoint, kC, kYScale, kYPoint };

gemm::Matrix View(const TensorView& t, bool transposed) {
  const gemm::Matrix m = gemm::Matrix::RowMajor(t.data, t.shape[0], t.shape[1]);
  return transposed ? m.Transposed() : m;
}

// Sums of integers to the result, row by row. In the launch.
struct Finish {
  const int32_t* sums;
  int64_t rows, columns;
  float alpha;
  TensorView a_scale, b_scale, c;
  int64_t c_row, c_column;  // strides
  TensorView y;
  std::optional<QuantizationScale> y_scale;

  void Run() const {
    const float factor = alpha * *a_scale.as<const float>();
    const int64_t step = b_scale.elements() == 1 ? 0 : 1;
    ParallelFor(rows, RowGrain(columns), [&, this](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        ForEachBlock(columns, [&](int64_t first, int64_t count) {
          alignas(64) float block[kRowBlock];
          float* values = y_scale ? block : y.as<float>() + row * columns + first;
          const int32_t* from = sums + row * columns + first;
          for (int64_t i = 0; i < count; ++i) {
            const int64_t column = first + i;
            const auto added = static_cast<uint32_t>(c ? c.as<const int32_t>()[row * c_row + column * c_column] : 0);
            const auto sum = static_cast<int32_t>(static_cast<uint32_t>(from[i]) + added);
            values[i] = static_cast<float>(sum) * (factor * b_scale.as<const float>()[column * step]);
          }
          if (y_scale) y_scale->Quantize(values, count, y.as<char>() + row * columns + first);
        });
      }
    });
  }
};

class QGemmKernel final : public Kernel {
 public:
  explicit QGemmKernel(const KernelInfo& info)
      : alpha_(static_cast<float>(info.attributes.Float("alpha"))),
        turn_a_(info.attributes.Bool("transA")),
        turn_b_(info.attributes.Bool("transB")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != kB || constant.shape.rank() != 2 || !kByteTypes.Contains(constant.dtype)) return false;
    packed_.Pack(kOp, constant.dtype, View(constant, turn_b_), stream);
    weight_ = constant;
    weight_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(kA), b = packed_ ? weight_ : ctx.Input(kB), c = ctx.Input(kC);
    NPU_OP_CHECK(kOp, a.shape.rank() == 2 && b.shape.rank() == 2, "expected matrices A and B, got ", a.shape, " and ",
                 b.shape);
    const gemm::Matrix left = View(a, turn_a_), right = View(b, turn_b_);
    NPU_OP_CHECK(kOp, left.columns == right.rows, "expected as many columns of A as rows of B, got ", a.shape,
                 turn_a_ ? " transposed and " : " and ", b.shape, turn_b_ ? " transposed" : "");
    const int64_t rows = left.rows, columns = right.columns;
    const TensorView a_scale = ctx.Input(kAScale), b_scale = ctx.Input(kBScale), point = ctx.Input(kYPoint);
    const Shape per_column{columns};
    NPU_OP_CHECK(kOp, a_scale.elements() == 1 && (b_scale.elements() == 1 || b_scale.shape == per_column),
                 "expected one a_scale and one b_scale or ", per_column, ", got shapes ", a_scale.shape, " and ",
                 b_scale.shape);
    NPU_OP_CHECK(kOp, ctx.Input(kAPoint).elements() == 1, "expected one a_zero_point, got shape ",
                 ctx.Input(kAPoint).shape);
    const ZeroPoints a_zero(ctx, kOp, "a_zero_point", ctx.Input(kAPoint), a, rows, false);
    const ZeroPoints b_zero(ctx, kOp, "b_zero_point", ctx.Input(kBPoint), b, columns, true);
    NPU_OP_CHECK(kOp, ctx.Input(kYScale).present == point.present, "expected both y_scale and y_zero_point, or none");
    Finish finish{.sums = nullptr,
                  .rows = rows,
                  .columns = columns,
                  .alpha = alpha_,
                  .a_scale = a_scale,
                  .b_scale = b_scale,
                  .c = c,
                  .c_row = 0,
                  .c_column = 0,
                  .y = {},
                  .y_scale = {}};
    if (c) SetC(c.shape, finish);
    if (point) finish.y_scale.emplace(kOp, "Y", point.dtype, ctx.Input(kYScale), point);
    finish.y = ctx.Output(0, point ? point.dtype : DType::kFloat32, Shape{rows, columns});
    if (finish.y.elements() == 0) return;
    auto* sums = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, finish.y.elements())));
    finish.sums = sums;
    ctx.Launch(kOp, [=, this, a_type = a.dtype, b_type = b.dtype] {
      a_zero.Load();
      b_zero.Load();
      gemm::Epilogue epilogue;
      epilogue.integers.a_zero_point = a_zero.At(0);
      epilogue.integers.b_zero_point = b_zero.At(0);
      const gemm::Result result{sums, DType::kInt32, columns};
      if (packed_) {
        gemm::PackedMatrix packed = packed_.matrix(right);
        packed.dtype = a_type;
        gemm::Multiply(left, packed, result, epilogue);
      } else {
        gemm::Multiply(a_type, left, b_type, right, result, epilogue);
      }
      finish.Run();
    });
  }

 private:
  static void SetC(const Shape& c, Finish& finish) {
    const int rank = c.rank();
    const int64_t columns = rank >= 1 ? c[rank - 1] : 1, rows = rank == 2 ? c[0] : 1;
    NPU_OP_CHECK(kOp, rank <= 2 && (columns == finish.columns || columns == 1) && (rows == finish.rows || rows == 1),
                 "expected C to broadcast to [", finish.rows, ", ", finish.columns, "], got ", c);
    finish.c_row = rows == 1 ? 0 : columns;
    finish.c_column = columns == 1 ? 0 : 1;
  }

  float alpha_;
  bool turn_a_, turn_b_;
  gemm::PackedWeight packed_;
  TensorView weight_;  // type and shape
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("A", kByteTypes), Input("a_scale", kFloat32), Input("a_zero_point", kByteTypes),
               Input("B", kByteTypes), Input("b_scale", kFloat32), Input("b_zero_point", kByteTypes),
               OptionalInput("C", {DType::kInt32}), OptionalInput("y_scale", kFloat32),
               OptionalInput("y_zero_point", kByteTypes)},
    .outputs = {Output("Y", kByteTypes | kFloat32)},
    .attributes = {IntAttribute("transA", 0), IntAttribute("transB", 0), FloatAttribute("alpha", 1.0)},
    .make = MakeKernel<QGemmKernel>,
}));

}  // namespace
}  // namespace npu
