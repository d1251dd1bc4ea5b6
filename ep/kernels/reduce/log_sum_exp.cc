// ReduceLogSumExp: the largest input is subtracted first, so that no exponential overflows. Computed in float, of
// float64 and integers in double.
#include <cmath>
#include <limits>

#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/definition.h"
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
      const C value = static_cast<C>(Upcast(x[i]));
      max = value > max || value != value ? value : max;
    }
  });
  const C shift = std::isfinite(max) ? max : 0;  // infinities and NaN come out as they are
  ForEachRun(plan, output, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) sum += real::Exp(static_cast<C>(Upcast(x[i])) - shift);
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
  explicit LogSumExpKernel(const KernelInfo& info) : arguments_(info.attributes) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const uint32_t reduced = arguments_.Reduced(kOp, ctx);
    const TensorView y = ctx.Output(0, x.dtype, ReducedShape(x.shape, reduced, arguments_.keep_dims()));
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
  ReduceArguments arguments_;
};

NPU_ONNX_KERNEL(AttributeAxesDef(kOp, 1, 13, SetOf(List{}), MakeKernel<LogSumExpKernel>));
NPU_ONNX_KERNEL(InputAxesDef(kOp, 18, 18, SetOf(List{}), MakeKernel<LogSumExpKernel>));

}  // namespace
}  // namespace npu
