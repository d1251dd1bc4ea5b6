// LpNormalization (ai.onnx 1 to 22): x / |x|_p along an axis, with p of 1 or 2; lines of zeros stay zeros. Norms are
// computed in double.
#include <cmath>

#include "ep/kernels/along_axis.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "LpNormalization";

class LpNormalizationKernel final : public Kernel {
 public:
  explicit LpNormalizationKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis")), p_(info.attributes.Int("p")) {
    NPU_OP_CHECK(kOp, p_ == 1 || p_ == 2, "expected p of 1 or 2, got ", p_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const Lines lines = Lines::AlongAxis(x.shape, NormalizeAxis(kOp, axis_, x.shape.rank()));
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [lines, p = p_, from = x.as<const T>(), to = y.as<T>()] {
        lines.ForEach([&](int64_t start) {
          double sum = 0;
          for (int64_t i = 0, at = start; i < lines.n; ++i, at += lines.stride) {
            const auto value = static_cast<double>(Upcast(from[at]));
            sum += p == 1 ? std::fabs(value) : value * value;
          }
          const double norm = p == 1 ? sum : std::sqrt(sum), divisor = norm == 0 ? 1 : norm;
          for (int64_t i = 0, at = start; i < lines.n; ++i, at += lines.stride)
            to[at] = Rounded<T>(static_cast<ComputeType<T>>(static_cast<double>(Upcast(from[at])) / divisor));
        });
      });
    });
  }

 private:
  int64_t axis_, p_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 1,
    .until = 22,
    .inputs = {Input("input", kAllFloats)},
    .outputs = {Output("output", kAllFloats)},
    .attributes = {IntAttribute("axis", -1), IntAttribute("p", 2)},
    .may_alias = {{0, 0}},
    .make = MakeKernel<LpNormalizationKernel>,
});

}  // namespace
}  // namespace npu
