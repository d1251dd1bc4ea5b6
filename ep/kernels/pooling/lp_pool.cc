// LpPool and GlobalLpPool: the p-norm of each window. Powers and sums are computed in float (double for float64) and
// rounded once.
#include <cmath>
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

template <class T>
struct NormTask {
  using C = ComputeType<T>;
  Plan plan;
  int64_t p;
  const T* x;
  T* y;

  template <class Power, class Root>
  void Rows(int64_t begin, int64_t end, const Power& power, const Root& root) const {
    pooling::WindowSums<T> window_sums(plan);
    pooling::RowWriter<T> writer(plan.columns());
    for (int64_t row = begin; row < end; ++row) {
      T* to = y + row * plan.columns();
      C* sums = writer.Values(to);
      window_sums.Row(x, row, power, sums);
      for (int64_t o = 0; o < plan.columns(); ++o) sums[o] = root(sums[o]);
      writer.Commit(to, plan.columns());
    }
  }

  void Rows(int64_t begin, int64_t end) const {
    if (p == 1) return Rows(begin, end, [](C v) { return std::fabs(v); }, [](C sum) { return sum; });
    if (p == 2) return Rows(begin, end, [](C v) { return v * v; }, [](C sum) { return std::sqrt(sum); });
    const C exponent = static_cast<C>(p);
    Rows(
        begin, end, [=](C v) { return std::pow(std::fabs(v), exponent); },
        [=](C sum) { return std::pow(sum, 1 / exponent); });
  }
};

void LpPool(OpContext& ctx, const char* op, std::vector<Axis> axes, int64_t p) {
  const TensorView x = ctx.Input(0);
  const TensorView y = ctx.Output(0, x.dtype, pooling::OutputShape(x.shape, axes));
  if (y.elements() == 0) return;
  Plan plan(x.shape, std::move(axes));
  DispatchTypes(op, x.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    pooling::LaunchRows(ctx, op, NormTask<T>{std::move(plan), p, x.as<const T>(), y.as<T>()});
  });
}

int64_t ReadExponent(const char* op, const KernelInfo& info) {
  const int64_t p = info.attributes.Int("p");
  NPU_OP_CHECK(op, p >= 1, "expected p of 1 or more, got ", p);
  return p;
}

class LpPoolKernel final : public Kernel {
 public:
  explicit LpPoolKernel(const KernelInfo& info)
      : sliding_("LpPool", info.attributes), p_(ReadExponent("LpPool", info)) {}
  void Compute(OpContext& ctx) const override { LpPool(ctx, "LpPool", sliding_.AxesOf(ctx.Input(0).shape), p_); }

 private:
  pooling::Sliding sliding_;
  int64_t p_;
};

class GlobalLpPoolKernel final : public Kernel {
 public:
  explicit GlobalLpPoolKernel(const KernelInfo& info) : p_(ReadExponent("GlobalLpPool", info)) {}
  void Compute(OpContext& ctx) const override {
    LpPool(ctx, "GlobalLpPool", pooling::GlobalAxes("GlobalLpPool", ctx.Input(0).shape), p_);
  }

 private:
  int64_t p_;
};

NPU_ONNX_KERNEL({
    .type = "LpPool",
    .since = 2,
    .until = 22,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = pooling::SlidingAttributes({IntsAttribute("dilations"), IntAttribute("p", 2)}),
    .make = MakeKernel<LpPoolKernel>,
});
NPU_ONNX_KERNEL({
    .type = "GlobalLpPool",
    .since = 2,
    .until = 22,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {IntAttribute("p", 2)},
    .make = MakeKernel<GlobalLpPoolKernel>,
});

}  // namespace
}  // namespace npu
