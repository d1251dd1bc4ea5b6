// torch's logcumsumexp: the logarithm of the sum of the exponentials up to each element. The running value is double.
#include <cmath>
#include <limits>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/scan.h"

namespace npu {
namespace {

constexpr const char* kOp = "logcumsumexp";

double LogAddExp(double a, double b) {
  if (a != a || b != b) return a + b;
  const double high = std::fmax(a, b), low = std::fmin(a, b);
  return high == low && std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
}

class LogCumSumExpKernel : public Kernel {
 public:
  explicit LogCumSumExpKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis(kOp, axis_, x.shape.rank());
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [view = ViewAround(x.shape, axis), from = x.as<const T>(), to = y.as<T>()] {
        ScanLines(view, /*reverse=*/false, -std::numeric_limits<double>::infinity(),
                  [=](double& sum, int64_t, int64_t i) {
                    sum = LogAddExp(sum, static_cast<double>(Upcast(from[i])));
                    to[i] = Rounded<T>(static_cast<ComputeType<T>>(sum));
                  });
      });
    });
  }

 private:
  int64_t axis_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "LogCumSumExp",
    .inputs = {Input("x", kAllFloats)},
    .outputs = {Output("y", kAllFloats)},
    .attributes = {RequiredInt("axis")},
    .may_alias = {{0, 0}},
    .make = MakeKernel<LogCumSumExpKernel>,
});

}  // namespace
}  // namespace npu
