// Hardmax: 1 at the first of the largest elements, 0 elsewhere; along one axis since opset 13, before that over all
// axes from `axis` on together. A line that begins with NaN has its 1 there.
#include "ep/kernels/along_axis.h"
#include "ep/kernels/elementwise/one_if.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

constexpr const char* kOp = "Hardmax";

class HardmaxKernel final : public Kernel {
 public:
  explicit HardmaxKernel(const KernelInfo& info)
      : flattens_(info.since_version < 13), axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    // The flattening form also accepts axis == rank: lines of one element.
    const int axis = flattens_ && axis_ == rank ? rank : NormalizeAxis(kOp, axis_, rank);
    const Lines lines =
        flattens_ ? Lines{x.shape.Elements(0, axis), x.shape.Elements(axis, rank), 1} : Lines::AlongAxis(x.shape, axis);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [lines, from = x.as<const T>(), to = y.as<T>()] {
        lines.ForEach([&](int64_t start) {
          int64_t best = start;
          for (int64_t i = 0, at = start; i < lines.n; ++i, at += lines.stride)
            if (Upcast(from[at]) > Upcast(from[best])) best = at;
          for (int64_t i = 0, at = start; i < lines.n; ++i, at += lines.stride) to[at] = OneIf<T>(at == best);
        });
      });
    });
  }

 private:
  bool flattens_;
  int64_t axis_;
};

OpDef Definition(int since, int until, int64_t axis) {
  return {
      .type = kOp,
      .since = since,
      .until = until,
      .inputs = {Input("input", kAllFloats)},
      .outputs = {Output("output", kAllFloats)},
      .attributes = {IntAttribute("axis", axis)},
      .make = MakeKernel<HardmaxKernel>,
  };
}

NPU_ONNX_KERNEL(Definition(1, 11, 1));
NPU_ONNX_KERNEL(Definition(13, 13, -1));

}  // namespace
}  // namespace npu
