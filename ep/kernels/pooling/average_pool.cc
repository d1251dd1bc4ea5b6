// AveragePool, GlobalAveragePool and torch's adaptive average pool, with gradients of those that torch has. Sums are
// computed in float (double for float64) and rounded once.
#include <cstring>
#include <utility>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/pooling/definition.h"
#include "ep/kernels/pooling/rows.h"
#include "ep/kernels/pooling/window_sums.h"
#include "ep/kernels/pooling/windows.h"

namespace npu {
namespace {

using pooling::Axis;
using pooling::Plan;
using pooling::Window;

// The divisor of the sums.
struct Divisor {
  bool padded = false;  // positions in the padding count, too
  int64_t fixed = 0;    // 0: the number of positions in the window
};

template <class C>
class Averages {
 public:
  Averages(const Plan& plan, const Divisor& divisor) : divisor_(divisor) {
    for (const Window& w : plan.windows()) counts_.push_back(static_cast<C>(divisor.padded ? w.padded : w.count));
  }
  // y = x divided by the size of the windows of an output row. A window without positions has the average 0.
  void Divide(const Plan& plan, int64_t output_row, const C* x, C* y) const {
    const int64_t n = plan.columns();
    if (divisor_.fixed != 0) {
      const C by = static_cast<C>(divisor_.fixed);
      for (int64_t o = 0; o < n; ++o) y[o] = x[o] / by;
      return;
    }
    const C rows = static_cast<C>(plan.RowCount(output_row, divisor_.padded));
    for (int64_t o = 0; o < n; ++o) y[o] = x[o] / std::max(rows * counts_[o], C{1});
  }

 private:
  Divisor divisor_;
  std::vector<C> counts_;  // per column
};

// The backward pass: adds each column's share to every position in its window.
template <class C>
void SpreadRow(const Plan& plan, const C* shares, C* __restrict sums) {
  if (plan.by_tap()) {
    plan.ForEachTap([&](int64_t first, int64_t count, int64_t position, auto stride) {
      const C* from = shares + first;
      C* to = sums + position;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) to[i * stride] += from[i];
    });
    return;
  }
  for (int64_t o = 0; o < plan.columns(); ++o) {
    const Window& window = plan.windows()[o];
    C* to = sums + window.begin;
    for (int64_t i = 0; i < window.count; ++i) to[i * plan.step()] += shares[o];
  }
}

template <class T>
struct AverageTask {
  Plan plan;
  Divisor divisor;
  const T* x;
  T* y;

  void Rows(int64_t begin, int64_t end) const {
    using C = ComputeType<T>;
    const Averages<C> averages(plan, divisor);
    pooling::WindowSums<T> window_sums(plan);
    pooling::RowWriter<T> writer(plan.columns());
    for (int64_t row = begin; row < end; ++row) {
      C* sums = writer.Values(y + row * plan.columns());
      window_sums.Row(x, row, pooling::Unchanged{}, sums);
      averages.Divide(plan, row % plan.rows_out(), sums, sums);
      writer.Commit(y + row * plan.columns(), plan.columns());
    }
  }
};

template <class T>
struct GradientTask {
  Plan plan;
  Divisor divisor;
  const T* gradient;
  T* out;

  void Planes(int64_t begin, int64_t end) const {
    using C = ComputeType<T>;
    const Averages<C> averages(plan, divisor);
    pooling::RowReader<T> reader(plan.columns());
    pooling::RowWriter<T> writer(plan.inputs());
    std::vector<C> shares(static_cast<size_t>(plan.columns()));
    for (int64_t plane = begin; plane < end; ++plane) {
      T* image = out + plane * plan.inputs();
      C* sums = writer.Values(image);
      std::fill(sums, sums + plan.inputs(), C{0});
      for (int64_t row = 0; row < plan.rows_out(); ++row) {
        const T* from = gradient + plane * plan.outputs() + row * plan.columns();
        averages.Divide(plan, row, reader(from, plan.columns()), shares.data());
        plan.ForEachInputRow(
            row, [&](int64_t input_row, int64_t) { SpreadRow(plan, shares.data(), sums + input_row * plan.width()); });
      }
      writer.Commit(image, plan.inputs());
    }
  }
};

void AveragePool(OpContext& ctx, const char* op, std::vector<Axis> axes, const Divisor& divisor) {
  const TensorView x = ctx.Input(0);
  const TensorView y = ctx.Output(0, x.dtype, pooling::OutputShape(x.shape, axes));
  if (y.elements() == 0) return;
  Plan plan(x.shape, std::move(axes));
  DispatchTypes(op, x.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    pooling::LaunchRows(ctx, op, AverageTask<T>{std::move(plan), divisor, x.as<const T>(), y.as<T>()});
  });
}

// The gradient with respect to an input of shape `input`, from the gradient of its averages.
void AveragePoolGradient(OpContext& ctx, const char* op, const Shape& input, std::vector<Axis> axes,
                         const Divisor& divisor) {
  const TensorView gradient = ctx.Input(0);
  const Shape expected = pooling::OutputShape(input, axes);
  NPU_OP_CHECK(op, gradient.shape == expected, "expected a gradient of shape ", expected, ", got ", gradient.shape);
  const TensorView out = ctx.Output(0, gradient.dtype, input);
  if (out.elements() == 0) return;
  if (gradient.elements() == 0) {
    ctx.Launch(op, [out] { std::memset(out.data, 0, out.bytes()); });
    return;
  }
  Plan plan(input, std::move(axes));
  DispatchTypes(op, gradient.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    ctx.Launch(op, [task = GradientTask<T>{std::move(plan), divisor, gradient.as<const T>(), out.as<T>()}] {
      ParallelFor(task.plan.planes(), task.plan.PlaneGrain(),
                  [&](int64_t begin, int64_t end) { task.Planes(begin, end); });
    });
  });
}

// The shape of the input: planes as in the gradient, spatial dimensions from input_size.
Shape InputShape(OpContext& ctx, const char* op) {
  const Shape& gradient = ctx.Input(0).shape;
  const std::vector<int64_t> sizes = ReadHostInts(op, "input_size", ctx.Input(1));
  NPU_OP_CHECK(op, static_cast<size_t>(gradient.rank()) == sizes.size() + 2, "expected a gradient [N, C] and ",
               sizes.size(), " spatial dimensions, got shape ", gradient);
  Shape shape{gradient[0], gradient[1]};
  for (const int64_t size : sizes) shape.push_back(size);
  return shape;
}

// AveragePool, and its form with a divisor attribute.
class SlidingAverage : public Kernel {
 protected:
  SlidingAverage(const char* op, const KernelInfo& info) : op_(op), sliding_(op, info.attributes) {
    divisor_.padded = info.attributes.Bool("count_include_pad");
    if (!info.attributes.Has("divisor")) return;
    divisor_.fixed = info.attributes.Int("divisor");
    NPU_OP_CHECK(op, divisor_.fixed != 0, "expected a divisor that is not 0");
  }
  const char* op_;
  pooling::Sliding sliding_;
  Divisor divisor_;
};

class AveragePoolKernel final : public SlidingAverage {
 public:
  explicit AveragePoolKernel(const KernelInfo& info) : SlidingAverage("AveragePool", info) {}
  void Compute(OpContext& ctx) const override { AveragePool(ctx, op_, sliding_.AxesOf(ctx.Input(0).shape), divisor_); }
};

class AveragePoolGradKernel final : public SlidingAverage {
 public:
  explicit AveragePoolGradKernel(const KernelInfo& info) : SlidingAverage("AveragePoolGrad", info) {}
  void Compute(OpContext& ctx) const override {
    const Shape input = InputShape(ctx, op_);
    AveragePoolGradient(ctx, op_, input, sliding_.AxesOf(input), divisor_);
  }
};

class GlobalAveragePoolKernel final : public Kernel {
 public:
  explicit GlobalAveragePoolKernel(const KernelInfo& /*info*/) {}
  void Compute(OpContext& ctx) const override {
    AveragePool(ctx, "GlobalAveragePool", pooling::GlobalAxes("GlobalAveragePool", ctx.Input(0).shape), {});
  }
};

class AdaptiveAveragePoolKernel final : public Kernel {
 public:
  explicit AdaptiveAveragePoolKernel(const KernelInfo& /*info*/) {}
  void Compute(OpContext& ctx) const override {
    constexpr const char* kOp = "AdaptiveAveragePool";
    const std::vector<int64_t> sizes = ReadHostInts(kOp, "output_size", ctx.Input(1));
    AveragePool(ctx, kOp, pooling::AdaptiveAxes(kOp, ctx.Input(0).shape, sizes), {});
  }
};

class AdaptiveAveragePoolGradKernel final : public Kernel {
 public:
  explicit AdaptiveAveragePoolGradKernel(const KernelInfo& /*info*/) {}
  void Compute(OpContext& ctx) const override {
    constexpr const char* kOp = "AdaptiveAveragePoolGrad";
    const Shape input = InputShape(ctx, kOp);
    const Shape& gradient = ctx.Input(0).shape;
    const std::vector<int64_t> sizes(gradient.begin() + 2, gradient.end());
    AveragePoolGradient(ctx, kOp, input, pooling::AdaptiveAxes(kOp, input, sizes), {});
  }
};

const std::vector<AttrDef> kAverageAttributes =
    pooling::SlidingAttributes({IntsAttribute("dilations"), IntAttribute("count_include_pad", 0)});
const std::vector<AttrDef> kDividedAttributes = pooling::SlidingAttributes(
    {IntsAttribute("dilations"), IntAttribute("count_include_pad", 0), IntAttribute("divisor")});

NPU_ONNX_KERNEL({
    .type = "AveragePool",
    .since = 7,
    .until = 22,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = kAverageAttributes,
    .make = MakeKernel<AveragePoolKernel>,
});
NPU_ONNX_KERNEL({
    .type = "GlobalAveragePool",
    .since = 1,
    .until = 22,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .make = MakeKernel<GlobalAveragePoolKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "AveragePool",
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = kDividedAttributes,
    .make = MakeKernel<AveragePoolKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "AveragePoolGrad",
    .inputs = {Input("gradient", kAllFloats), HostInput("input_size", kInt64)},
    .outputs = {Output("input_gradient", kAllFloats)},
    .attributes = kDividedAttributes,
    .make = MakeKernel<AveragePoolGradKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "AdaptiveAveragePool",
    .inputs = {Input("X", kAllFloats), HostInput("output_size", kInt64)},
    .outputs = {Output("Y", kAllFloats)},
    .make = MakeKernel<AdaptiveAveragePoolKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "AdaptiveAveragePoolGrad",
    .inputs = {Input("gradient", kAllFloats), HostInput("input_size", kInt64)},
    .outputs = {Output("input_gradient", kAllFloats)},
    .make = MakeKernel<AdaptiveAveragePoolGradKernel>,
});

}  // namespace
}  // namespace npu
