// MeanVarianceNormalization (ai.onnx 9 to 13): (x - mean) / (deviation + 1e-9) over some axes. The sums are computed
// in double.
#include <cmath>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/runs.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "MeanVarianceNormalization";
constexpr double kEpsilon = 1e-9;  // of the operator's definition

template <class T>
void Normalize(const ReducePlan& plan, int64_t output, const T* x, T* y) {
  using C = ComputeType<T>;
  double sum = 0, squares = 0;
  const auto n = static_cast<double>(plan.inputs_per_output);
  const auto each = [&](const auto& f) {
    ForEachRun(plan, output, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i) f(i);
    });
  };
  each([&](int64_t i) { sum += static_cast<double>(Upcast(x[i])); });
  const double mean = sum / n;
  each([&](int64_t i) {
    const double way = static_cast<double>(Upcast(x[i])) - mean;
    squares += way * way;
  });
  const double scale = 1 / (std::sqrt(squares / n) + kEpsilon);
  each([&](int64_t i) { y[i] = Rounded<T>(static_cast<C>((static_cast<double>(Upcast(x[i])) - mean) * scale)); });
}

class MeanVarianceKernel final : public Kernel {
 public:
  explicit MeanVarianceKernel(const KernelInfo& info) : axes_(info.attributes.Ints("axes")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const ReducePlan plan = PlanReduce(x.shape, ReducedAxes(kOp, axes_, x.shape.rank(), false));
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [plan, from = x.as<const T>(), to = y.as<T>()] {
        ParallelFor(plan.outputs, RowGrain(4 * plan.inputs_per_output), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) Normalize(plan, i, from, to);
        });
      });
    });
  }

 private:
  std::vector<int64_t> axes_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 9,
    .until = 13,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {IntsAttribute("axes", {0, 2, 3})},
    .make = MakeKernel<MeanVarianceKernel>,
});

}  // namespace
}  // namespace npu
