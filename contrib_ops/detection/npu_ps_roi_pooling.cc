// npu_ps_roi_pooling(self, rois; spatial_scale, group_size, output_dim) -> y. The semantics are in
// npu_ps_roi_pooling.py.
#include "contrib_ops/detection/npu_ps_roi_pooling.h"

#include "ep/kernels/detection/position_arguments.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUPsRoiPooling::In;
using Out = nodes::NPUPsRoiPooling::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_ps_roi_pooling";

float Mean(const float* plane, int64_t width, PixelRange rows, PixelRange columns) {
  const int64_t count = rows.size() * columns.size();
  if (count == 0) return 0;
  const double part = 1 / static_cast<double>(count);
  double sum = 0;
  for (int64_t y = rows.begin; y < rows.end; ++y)
    for (int64_t x = columns.begin; x < columns.end; ++x) sum += plane[y * width + x] * part;
  return static_cast<float>(sum);
}

class PsRoiPoolingKernel final : public Kernel {
 public:
  explicit PsRoiPoolingKernel(const KernelInfo& info) : arguments_(info) {}

  void Compute(OpContext& ctx) const override {
    const TensorView self = ctx.Input(In::self), rois = ctx.Input(In::rois);
    arguments_.CheckRegions(kOp, rois);
    arguments_.CheckMap(kOp, "self", self.shape);
    NPU_OP_CHECK(kOp, self.dtype == rois.dtype, "expected rois of the dtype of self, ", NameOf(self.dtype), ", got ",
                 NameOf(rois.dtype));
    const PositionBins bins = arguments_.Bins(self.shape, rois.shape);
    const FloatResults results(ctx, ctx.Output(Out::y, self.dtype, arguments_.PooledShape(rois.shape)));
    if (results.elements() == 0) return;
    ctx.Launch(kOp, [=, of = FloatValues(ctx, self), in = FloatValues(ctx, rois)] {
      const float* maps = self.elements() == 0 ? nullptr : of.Load(kOp);
      const float* regions = in.Load(kOp);
      ParallelFor(bins.Bins(), 256, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          bins.At(regions, i, [&](int64_t plane, PixelRange rows, PixelRange columns) {
            const int64_t size = bins.height * bins.width;
            results.values()[i] = plane < 0 ? 0 : Mean(maps + plane * size, bins.width, rows, columns);
          });
        }
      });
      results.Store(kOp);
    });
  }

 private:
  PositionArguments arguments_;
};

NPU_KERNEL(NPUPsRoiPooling, PsRoiPoolingKernel);

}  // namespace
}  // namespace npu
