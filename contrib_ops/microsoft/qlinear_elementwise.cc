// QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu and QLinearWhere: elementwise operators of 8-bit integers.
// A function of one value is a table of 256 results.
#include <cmath>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/quantized_tensor.h"
#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr DTypeSet kFloat32{DType::kFloat32};

struct Add {
  static constexpr const char* kOp = "QLinearAdd";
  float operator()(float a, float b) const { return a + b; }
};
struct Mul {
  static constexpr const char* kOp = "QLinearMul";
  float operator()(float a, float b) const { return a * b; }
};

template <class F>
class QLinearBinaryKernel final : public Kernel {
 public:
  explicit QLinearBinaryKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = ctx.Input(3);
    const QuantizationScale a_scale(F::kOp, "A", a.dtype, ctx.Input(1), ctx.Input(2));
    const QuantizationScale b_scale(F::kOp, "B", b.dtype, ctx.Input(4), ctx.Input(5));
    const QuantizationScale c_scale(F::kOp, "C", a.dtype, ctx.Input(6), ctx.Input(7));
    const Shape shape = BroadcastShapes(F::kOp, a.shape, b.shape);
    const TensorView c = ctx.Output(0, a.dtype, shape);
    if (c.elements() == 0) return;
    ctx.Launch(F::kOp, [=, plan = PlanBroadcast<2>(shape, {a.shape, b.shape})] {
      ParallelFor(plan.total, kSerialElements, [&](int64_t begin, int64_t end) {
        ForEachRow(plan, begin, end, [&](int64_t to, const std::array<int64_t, 2>& from, int64_t n) {
          ForEachBlock(n, [&](int64_t first, int64_t count) {
            alignas(64) float left[kRowBlock], right[kRowBlock];
            Load(a, a_scale, from[0], plan.step[0], first, count, left);
            Load(b, b_scale, from[1], plan.step[1], first, count, right);
#pragma omp simd
            for (int64_t i = 0; i < count; ++i) left[i] = F()(left[i], right[i]);
            c_scale.Quantize(left, count, c.as<char>() + to + first);
          });
        });
      });
    });
  }

 private:
  // Elements of a row that moves or stands still.
  static void Load(const TensorView& from, const QuantizationScale& scale, int64_t row, int64_t step, int64_t first,
                   int64_t count, float* to) {
    if (step != 0) return scale.Dequantize(from.as<const char>() + row + first, count, to);
    scale.Dequantize(from.as<const char>() + row, 1, to);
    std::fill(to + 1, to + count, to[0]);
  }
};

template <class F>
OpDef BinaryDef() {
  return Microsoft({
      .type = F::kOp,
      .inputs = {Input("A", kByteTypes), Input("A_scale", kFloat32), OptionalInput("A_zero_point", kByteTypes),
                 Input("B", kByteTypes), Input("B_scale", kFloat32), OptionalInput("B_zero_point", kByteTypes),
                 Input("C_scale", kFloat32), OptionalInput("C_zero_point", kByteTypes)},
      .outputs = {Output("C", kByteTypes)},
      .make = MakeKernel<QLinearBinaryKernel<F>>,
  });
}

NPU_ONNX_KERNEL(BinaryDef<Add>());
NPU_ONNX_KERNEL(BinaryDef<Mul>());

struct Sigmoid {
  static constexpr const char* kOp = "QLinearSigmoid";
  explicit Sigmoid(const KernelInfo&) {}
  float operator()(float x) const { return real::Sigmoid(x); }
};
struct LeakyRelu {
  static constexpr const char* kOp = "QLinearLeakyRelu";
  explicit LeakyRelu(const KernelInfo& info) : alpha(static_cast<float>(info.attributes.Float("alpha"))) {}
  float operator()(float x) const { return x < 0 ? alpha * x : x; }
  float alpha;
};

template <class F>
class QLinearUnaryKernel final : public Kernel {
 public:
  explicit QLinearUnaryKernel(const KernelInfo& info) : f_(info) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const QuantizationScale x_scale(F::kOp, "X", x.dtype, ctx.Input(1), ctx.Input(2));
    const QuantizationScale y_scale(F::kOp, "Y", x.dtype, ctx.Input(3), ctx.Input(4));
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    ctx.Launch(F::kOp, [=, f = f_] {
      const ByteTable table(x_scale, y_scale, f);
      ParallelFor(x.elements(), kSerialElements, [&](int64_t begin, int64_t end) {
        table.Map(x.as<const uint8_t>() + begin, end - begin, y.as<uint8_t>() + begin);
      });
    });
  }

 private:
  F f_;
};

template <class F>
OpDef UnaryDef(std::vector<AttrDef> attributes = {}) {
  return Microsoft({
      .type = F::kOp,
      .inputs = {Input("X", kByteTypes), Input("X_scale", kFloat32), OptionalInput("X_zero_point", kByteTypes),
                 Input("Y_scale", kFloat32), OptionalInput("Y_zero_point", kByteTypes)},
      .outputs = {Output("Y", kByteTypes)},
      .attributes = std::move(attributes),
      .make = MakeKernel<QLinearUnaryKernel<F>>,
  });
}

NPU_ONNX_KERNEL(UnaryDef<Sigmoid>());
NPU_ONNX_KERNEL(UnaryDef<LeakyRelu>({FloatAttribute("alpha", 0.01)}));

class QLinearWhereKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "QLinearWhere";
  explicit QLinearWhereKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView condition = ctx.Input(0), x = ctx.Input(1), y = ctx.Input(4);
    const QuantizationScale x_scale(kOp, "X", x.dtype, ctx.Input(2), ctx.Input(3));
    const QuantizationScale y_scale(kOp, "Y", y.dtype, ctx.Input(5), ctx.Input(6));
    const QuantizationScale z_scale(kOp, "Z", x.dtype, ctx.Input(7), ctx.Input(8));
    const Shape shape = BroadcastShapes(kOp, BroadcastShapes(kOp, condition.shape, x.shape), y.shape);
    const TensorView z = ctx.Output(0, x.dtype, shape);
    if (z.elements() == 0) return;
    ctx.Launch(kOp, [=, plan = PlanBroadcast<3>(shape, {condition.shape, x.shape, y.shape})] {
      const ByteTable of_x(x_scale, z_scale), of_y(y_scale, z_scale);
      ParallelFor(plan.total, kSerialElements, [&](int64_t begin, int64_t end) {
        ForEachRow(plan, begin, end, [&](int64_t to, const std::array<int64_t, 3>& from, int64_t n) {
          const auto* chosen = condition.as<const uint8_t>() + from[0];
          const auto *left = x.as<const uint8_t>() + from[1], *right = y.as<const uint8_t>() + from[2];
          for (int64_t i = 0; i < n; ++i)
            z.as<uint8_t>()[to + i] =
                chosen[i * plan.step[0]] != 0 ? of_x[left[i * plan.step[1]]] : of_y[right[i * plan.step[2]]];
        });
      });
    });
  }
};

NPU_ONNX_KERNEL(Microsoft({
    .type = QLinearWhereKernel::kOp,
    .inputs = {Input("condition", {DType::kBool}), Input("X", kByteTypes), Input("x_scale", kFloat32),
               Input("x_zero_point", kByteTypes), Input("Y", kByteTypes), Input("y_scale", kFloat32),
               Input("y_zero_point", kByteTypes), Input("z_scale", kFloat32), Input("z_zero_point", kByteTypes)},
    .outputs = {Output("Z", kByteTypes)},
    .make = MakeKernel<QLinearWhereKernel>,
}));

}  // namespace
}  // namespace npu
