// QLinearConcat: concatenates tensors of 8-bit integers, each with its scale and zero point, in those of the result.
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/quantized_tensor.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "QLinearConcat";

// One input: `width` elements of every row of the result from column `first` on.
struct Part {
  const uint8_t* data;
  QuantizationScale scale;
  int64_t width, first;
};

class QLinearConcatKernel final : public Kernel {
 public:
  explicit QLinearConcatKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const size_t given = ctx.input_count();
    NPU_OP_CHECK(kOp, given >= 5 && (given - 2) % 3 == 0,
                 "expected Y_scale, Y_zero_point and a tensor, a scale and a zero point for each input, got ", given,
                 " inputs");
    const TensorView zero = ctx.Input(1);
    const QuantizationScale y_scale(kOp, "Y", zero.dtype, ctx.Input(0), zero);
    Shape shape = ctx.Input(2).shape;
    const int axis = NormalizeAxis(kOp, axis_, shape.rank());
    const int64_t inner = shape.Elements(axis + 1, shape.rank());
    std::vector<Part> parts;
    int64_t total = 0;
    for (size_t i = 2; i < given; i += 3) {
      const TensorView x = ctx.Input(i);
      Shape wanted = shape;
      if (x.shape.rank() == shape.rank()) wanted[axis] = x.shape[axis];
      NPU_OP_CHECK(kOp, x.shape == wanted, "expected inputs whose shapes differ along axis ", axis, " only, got ",
                   shape, " and ", x.shape);
      const QuantizationScale scale(kOp, "an input", x.dtype, ctx.Input(i + 1), ctx.Input(i + 2));
      parts.push_back({x.as<const uint8_t>(), scale, x.shape[axis] * inner, total * inner});
      total += x.shape[axis];
    }
    shape[axis] = total;
    const TensorView y = ctx.Output(0, zero.dtype, shape);
    if (y.elements() == 0) return;
    const int64_t rows = shape.Elements(0, axis), pitch = total * inner;
    ctx.Launch(kOp, [parts = std::move(parts), y_scale, rows, pitch, to = y.as<uint8_t>()] {
      for (const Part& part : parts) {
        const ByteTable table(part.scale, y_scale);
        ParallelFor(rows, RowGrain(part.width), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            table.Map(part.data + row * part.width, part.width, to + row * pitch + part.first);
        });
      }
    });
  }

 private:
  int64_t axis_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("Y_scale", {DType::kFloat32}), Input("Y_zero_point", kByteTypes),
               VariadicInput("inputs", kByteTypes | DTypeSet{DType::kFloat32})},
    .outputs = {Output("Y", kByteTypes)},
    .attributes = {RequiredInt("axis")},
    .make = MakeKernel<QLinearConcatKernel>,
}));

}  // namespace
}  // namespace npu
