// DynamicQuantizeLinear (ai.onnx 11): uint8 over the range of the values and 0.
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/quantization/dynamic_uint8.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu {

ScaleAndPoint UInt8ScaleOf(const Extremes& range) {
  if (range.magnitude > 0x7f800000u) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float low = std::min(range.low, 0.0f), high = std::max(range.high, 0.0f);
  // Of zeros alone, or of nothing, any scale will do: 1 is onnxruntime's.
  const float scale = high == low ? 1.0f : (high - low) / 255.0f;
  return {scale, static_cast<uint8_t>(RoundSaturated(-low / scale, 0.0f, 255.0f))};
}

namespace {

class DynamicQuantizeLinearKernel final : public Kernel {
 public:
  explicit DynamicQuantizeLinearKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView y = ctx.Output(0, DType::kUInt8, x.shape);
    const TensorView scale = ctx.Output(1, DType::kFloat32, {}), point = ctx.Output(2, DType::kUInt8, {});
    DynamicUInt8::Launch(ctx, "DynamicQuantizeLinear", x, y.as<uint8_t>(), scale.as<float>(), point.as<uint8_t>());
  }
};

NPU_ONNX_KERNEL({
    .type = "DynamicQuantizeLinear",
    .since = 11,
    .until = 11,
    .inputs = {Input("x", {DType::kFloat32})},
    .outputs = {Output("y", {DType::kUInt8}), Output("y_scale", {DType::kFloat32}),
                Output("y_zero_point", {DType::kUInt8})},
    .make = MakeKernel<DynamicQuantizeLinearKernel>,
});

}  // namespace

DynamicUInt8::DynamicUInt8(OpContext& ctx, const char* op, const TensorView& x)
    : scale_(static_cast<float*>(ctx.Workspace(sizeof(float)))) {
  values_ = {ctx.Workspace(static_cast<size_t>(x.elements())), DType::kUInt8, true, x.shape};
  point_ = {ctx.Workspace(1), DType::kUInt8, true, {}};
  Launch(ctx, op, x, values_.as<uint8_t>(), scale_, point_.as<uint8_t>());
}

void DynamicUInt8::Launch(OpContext& ctx, const char* op, const TensorView& x, uint8_t* values, float* scale,
                          uint8_t* point) {
  const int64_t count = x.elements(), pieces = PiecesOf(count);
  auto* partial = static_cast<Extremes*>(ctx.Workspace(static_cast<size_t>(pieces) * sizeof(Extremes)));
  ctx.Launch(op, [=] {
    ForEachPiece(1, count, [&](int64_t, int64_t begin, int64_t n) {
      Extremes range;
      range.Add(x.as<const float>() + begin, n);
      partial[begin / kPiece] = range;
    });
    Extremes range;
    for (int64_t i = 0; i < pieces; ++i) range.Add(partial[i]);
    const ScaleAndPoint made = UInt8ScaleOf(range);
    if (scale) *scale = made.scale;
    if (point) *point = made.point;
    if (values == nullptr) return;
    const float offset = made.point;
    ForEachPiece(1, count, [&](int64_t row, int64_t begin, int64_t n) {
      QuantizePiece(QuantizeBy::kDivision, QuantizedType::kUInt8, x, row, count, begin, n, {&made.scale, false},
                    {&offset, false}, values);
    });
  });
}

}  // namespace npu
