// ReduceLogSumExp: the largest input is subtracted first, so that no exponential overflows. Computed in float, of
// float64 and integers in double.
#include <cmath>
#include <limits>

#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/elementwise/widen.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/runs.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

constexpr const char* kOp = "ReduceLogSumExp";
using List = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;

template <class T>
T LogSumExp(const ReducePlan& plan, const T* x, int64_t output) {
  using C = std::conditional_t<std::is_integral_v<T>, double, ComputeType<T>>;
  C max = -std::numeric_limits<C>::infinity(), sum = 0;
  ForEachRun(plan, output, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const C value = static_cast<C>(Widened(x[i]));
      max = value > max || value != value ? value : max;
    }
  });
  const C shift = std::isfinite(max) ? max : 0;  // infinities and NaN come out as they are
  ForEachRun(plan, output, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) sum += real::Exp(static_cast<C>(Widened(x[i])) - shift);
  });
  const C result = shift + std::log(sum);
  if constexpr (std::is_integral_v<T>) {
    return SafeCast<T>(result);
  } else {
    return Rounded<T>(result);
  }
}

class LogSumExpKernel final : public Kernel {
 public:
  explicit LogSumExpKernel(const KernelInfo& info)
      : axes_(info.attributes.Ints("axes")),
        keep_dims_(info.attributes.Bool("keepdims")),
        noop_(info.attributes.Bool("noop_with_empty_axes", false)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const std::vector<int64_t> axes = ctx.Input(1) ? ReadHostInts(kOp, "axes", ctx.Input(1)) : axes_;
    const uint32_t reduced = ReducedAxes(kOp, axes, x.shape.rank(), noop_);
    const TensorView y = ctx.Output(0, x.dtype, ReducedShape(x.shape, reduced, keep_dims_));
    const ReducePlan plan = PlanReduce(x.shape, reduced);
    if (plan.outputs == 0) return;
    DispatchTypes(kOp, x.dtype, List{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [plan, from = x.as<const T>(), to = y.as<T>()] {
        ParallelFor(plan.outputs, RowGrain(4 * plan.inputs_per_output), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) to[i] = LogSumExp(plan, from, i);
        });
      });
    });
  }

 private:
  std::vector<int64_t> axes_;  // the attribute, before the axes became an input
  bool keep_dims_, noop_;
};

OpDef Definition(int since, int until, std::vector<ArgDef> inputs, AttrDef axes) {
  return {
      .type = kOp,
      .since = since,
      .until = until,
      .inputs = std::move(inputs),
      .outputs = {Output("reduced", SetOf(List{}))},
      .attributes = {IntAttribute("keepdims", 1), std::move(axes)},
      .make = MakeKernel<LogSumExpKernel>,
  };
}

NPU_ONNX_KERNEL(Definition(1, 13, {Input("data", SetOf(List{}))}, IntsAttribute("axes")));
NPU_ONNX_KERNEL(Definition(18, 18, {Input("data", SetOf(List{})), OptionalHostInput("axes", kInt64)},
                           IntAttribute("noop_with_empty_axes", 0)));

}  // namespace
}  // namespace npu
