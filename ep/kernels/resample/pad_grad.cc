// The gradient of Pad with respect to its input: for each element, the sum over the positions that it was copied to.
#include <string>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/pad_axis.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/resample/taps.h"

namespace npu {
namespace {

class PadGradKernel final : public Kernel {
 public:
  explicit PadGradKernel(const KernelInfo& info) {
    const std::string mode = info.attributes.String("mode");
    NPU_CHECK(ParsePadMode(mode, &mode_), "[PadGrad] expected mode constant, reflect, edge or wrap, got ", mode);
  }
  void Compute(OpContext& ctx) const override {
    const TensorView dy = ctx.Input(0);
    const Shape shape(ReadHostInts("PadGrad", "shape", ctx.Input(1)));
    const std::vector<int64_t> pads = ReadHostInts("PadGrad", "pads", ctx.Input(2));
    const int rank = shape.rank();
    NPU_CHECK(rank == dy.shape.rank() && pads.size() == 2 * static_cast<size_t>(rank),
              "[PadGrad] expected a shape and two pads for each of ", dy.shape.rank(), " axes, got ", shape, " and ",
              pads.size(), " pads");
    const auto before = [&](int d) { return pads[static_cast<size_t>(d)]; };
    const auto after = [&](int d) { return pads[static_cast<size_t>(d + rank)]; };
    for (int d = 0; d < rank; ++d) {
      NPU_CHECK(shape[d] >= 0 && PaddedDim("PadGrad", mode_, d, before(d), after(d), shape[d]) == dy.shape[d],
                "[PadGrad] expected a gradient of shape ", shape, " padded, got ", dy.shape);
    }
    const TensorView dx = ctx.Output(0, dy.dtype, shape);
    if (dx.elements() == 0) return;
    std::vector<resample::AxisTaps> axes;
    for (int d = 0; d < rank; ++d) {
      if (before(d) == 0 && after(d) == 0) continue;
      const resample::Taps taps(shape[d], PadMap(mode_, shape[d], before(d), after(d)));
      axes.push_back({d, taps.Transposed()});
    }
    resample::LaunchTaps(ctx, "PadGrad", dy, dx, std::move(axes));
  }

 private:
  PadMode mode_ = PadMode::kConstant;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "PadGrad",
    .inputs = {Input("dY", kAllFloats), HostInput("shape", kInt64), HostInput("pads", kInt64)},
    .outputs = {Output("dX", kAllFloats)},
    .attributes = {StringAttribute("mode", "constant")},
    .make = MakeKernel<PadGradKernel>,
});

}  // namespace
}  // namespace npu
