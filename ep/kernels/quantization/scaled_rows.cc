// ScaledRows (npu.fused): rows of floats [.., D] as rows of int8 [.., D + 4], whose last four bytes are their scale, a
// float32. The exporter makes it of npu_dynamic_quant, whose integers and scales these are, and of BytesOfFloats;
// FloatsOfBytes reads such scales.
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/scaled_row.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

constexpr const char* kOp = "ScaledRows";

class ScaledRowsKernel final : public Kernel {
 public:
  explicit ScaledRowsKernel(const KernelInfo& /*info*/) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x && x.shape.rank() >= 1 && x.shape.back() >= 1, "expected x [.., D] with D >= 1, got ", x.shape);
    const int64_t columns = x.shape.back(), rows = x.elements() / columns;
    Shape shape = x.shape;
    shape[shape.rank() - 1] = columns + kScaleBytes;
    const TensorView y = ctx.Output(0, DType::kInt8, shape);
    if (!y) return;
    ctx.Launch(kOp, [=] {
      DispatchFloats(kOp, x.dtype, [&](auto type) {
        using T = decltype(type);
        ParallelFor(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
          SymmetricRows<T> rounding(nullptr, columns);
          for (int64_t row = begin; row < end; ++row) {
            StoreScaled(rounding, x.as<const T>() + row * columns, y.as<int8_t>() + row * (columns + kScaleBytes));
          }
        });
      });
    });
  }
};

// [..] as [.., 4], or back.
template <DType kFrom, DType kTo>
class BytesKernel final : public Kernel {
 public:
  explicit BytesKernel(const KernelInfo& /*info*/) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    Shape shape = x.shape;
    if (kFrom == DType::kFloat32) {
      shape.push_back(sizeof(float));
    } else {
      NPU_CHECK(x && shape.rank() >= 1 && shape.back() == sizeof(float), "[FloatsOfBytes] expected bytes [.., 4], got ",
                shape);
      shape = Shape(shape.begin(), static_cast<size_t>(shape.rank() - 1));
    }
    const TensorView y = ctx.Output(0, kTo, shape);
    if (y) ctx.Launch("copy", [=] { CopyBytes(x.data, y.data, static_cast<int64_t>(x.bytes())); });
  }
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = "BytesOfFloats",
    .inputs = {Input("given", {DType::kFloat32})},
    .outputs = {Output("result", {DType::kInt8})},
    .make = MakeKernel<BytesKernel<DType::kFloat32, DType::kInt8>>,
});

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = "FloatsOfBytes",
    .inputs = {Input("given", {DType::kInt8})},
    .outputs = {Output("result", {DType::kFloat32})},
    .make = MakeKernel<BytesKernel<DType::kInt8, DType::kFloat32>>,
});

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("x", kFloats)},
    .outputs = {Output("y", {DType::kInt8})},
    .make = MakeKernel<ScaledRowsKernel>,
});

}  // namespace
}  // namespace npu
