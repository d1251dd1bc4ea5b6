// npu_roi_align(self, rois; spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode) -> y. The semantics
// are in npu_roi_align.py.
#include "contrib_ops/detection/npu_roi_align.h"

#include "ep/kernels/detection/npu_roi_sampling.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPURoiAlign::In;
using Out = nodes::NPURoiAlign::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_roi_align";

class RoiAlignKernel final : public Kernel {
 public:
  explicit RoiAlignKernel(const KernelInfo& info) : arguments_(info, info.attributes.Int("roi_end_mode")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView self = ctx.Input(In::self), rois = ctx.Input(In::rois);
    const Shape& s = self.shape;
    NPU_OP_CHECK(kOp, self && s.rank() == 4, "expected self of shape [B, C, H, W], got ", s);
    arguments_.Check(kOp, rois);
    NPU_OP_CHECK(kOp, self.dtype == rois.dtype, "expected rois of the dtype of self, ", NameOf(self.dtype), ", got ",
                 NameOf(rois.dtype));
    const int64_t images = s[0], channels = s[1], height = s[2], width = s[3];
    const int64_t bins = arguments_.sampling.height * arguments_.sampling.width;
    const FloatResults results(
        ctx, ctx.Output(Out::y, self.dtype,
                        {rois.shape[0], channels, arguments_.sampling.height, arguments_.sampling.width}));
    if (results.elements() == 0) return;
    ctx.Launch(kOp, [=, of = FloatValues(ctx, self), in = FloatValues(ctx, rois), arguments = arguments_] {
      const float* regions = in.Load(kOp);
      const PooledPlanes planes{of.Load(kOp), rois.shape[0], channels, height, width, results.values(), bins};
      planes.Run(
          [&](int64_t i, RoiSamples& samples) {
            const int64_t image = ImageOf(regions + 5 * i, images);
            if (image >= 0) arguments.Locate(kOp, regions + 5 * i, height, width, samples);
            return image;
          },
          [&](const RoiSamples& samples, const float* plane, float* room, float* pooled) {
            samples.Pool(plane, width, room, pooled);
          });
      results.Store(kOp);
    });
  }

 private:
  RoiAlignArguments arguments_;
};

NPU_KERNEL(NPURoiAlign, RoiAlignKernel);

}  // namespace
}  // namespace npu
