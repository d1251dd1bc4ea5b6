// torch.linspace: evenly spaced numbers, computed from both ends, so that the last one is `end`. Integers are computed
// in double and truncated, so this file is compiled without contraction to FMA.
#include <type_traits>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

double ReadHostNumber(const char* name, const TensorView& view) {
  NPU_CHECK(view && view.dtype == DType::kFloat64 && view.elements() == 1, "[Linspace] expected ", name,
            " to be one float64");
  return *view.as<const double>();
}

class LinspaceKernel final : public Kernel {
 public:
  explicit LinspaceKernel(const KernelInfo& info) : dtype_(static_cast<DType>(info.attributes.Int("dtype"))) {}
  void Compute(OpContext& ctx) const override {
    const double start = ReadHostNumber("start", ctx.Input(0)), end = ReadHostNumber("end", ctx.Input(1));
    const int64_t steps = ReadHostInt("Linspace", "steps", ctx.Input(2));
    NPU_CHECK(steps >= 2, "[Linspace] expected steps >= 2, got ", steps);
    DispatchTypes("Linspace", dtype_, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      using Step = std::conditional_t<std::is_integral_v<T>, double, ComputeType<T>>;
      const auto first = static_cast<Step>(start), last = static_cast<Step>(end);
      const Step step = (last - first) / static_cast<Step>(steps - 1);
      ctx.Launch("Linspace", [=, to = ctx.Output(0, dtype_, {steps}).template as<T>()] {
        ParallelFor(steps, kMathGrain, [=](int64_t begin, int64_t stop) {
          for (int64_t i = begin; i < stop; ++i) {
            const Step value =
                i < steps / 2 ? first + step * static_cast<Step>(i) : last - step * static_cast<Step>(steps - i - 1);
            if constexpr (std::is_integral_v<T>) {
              to[i] = SafeCast<T>(value);
            } else {
              to[i] = static_cast<T>(value);
            }
          }
        });
      });
    });
  }

 private:
  DType dtype_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "Linspace",
    .inputs = {HostInput("start", kFloat64), HostInput("end", kFloat64), HostInput("steps", kInt64)},
    .outputs = {Output("out", SetOf(NumericTypes{}))},
    .attributes = {RequiredInt("dtype")},
    .make = MakeKernel<LinspaceKernel>,
});

}  // namespace
}  // namespace npu
