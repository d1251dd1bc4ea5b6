// npu_roi_alignbk(self, rois; xdiff_shape, pooled_width, pooled_height, spatial_scale, sample_num, roi_end_mode) -> y.
// The semantics are in npu_roi_alignbk.py.
#include "contrib_ops/detection/npu_roi_alignbk.h"

#include "ep/kernels/detection/npu_roi_sampling.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPURoiAlignBackward::In;
using Out = nodes::NPURoiAlignBackward::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_roi_alignbk";

class RoiAlignBackwardKernel final : public Kernel {
 public:
  explicit RoiAlignBackwardKernel(const KernelInfo& info)
      : arguments_(info, info.attributes.Int("roi_end_mode", 1)), shape_(info.attributes.Ints("xdiff_shape")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView grad = ctx.Input(In::self), rois = ctx.Input(In::rois);
    arguments_.Check(kOp, rois);
    bool fits = shape_.size() == 4;
    for (const int64_t size : shape_) fits &= size >= 0 && size <= std::numeric_limits<int32_t>::max();
    NPU_OP_CHECK(kOp, fits, "expected xdiff_shape [B, C, H, W] of int32 sizes, got ", Shape(shape_));
    const int64_t images = shape_[0], channels = shape_[1], height = shape_[2], width = shape_[3];
    const Shape expected{rois.shape[0], channels, arguments_.sampling.height, arguments_.sampling.width};
    NPU_OP_CHECK(kOp, grad && grad.shape == expected, "expected self of shape ", expected, ", got ", grad.shape);
    NPU_OP_CHECK(kOp, grad.dtype == rois.dtype, "expected rois of the dtype of self, ", NameOf(grad.dtype), ", got ",
                 NameOf(rois.dtype));
    const FloatResults results(ctx, ctx.Output(Out::y, grad.dtype, Shape(shape_)));
    if (results.elements() == 0) return;
    ctx.Launch(kOp, [=, of = FloatValues(ctx, grad), in = FloatValues(ctx, rois), arguments = arguments_] {
      const int64_t n = rois.shape[0], bins = arguments.sampling.height * arguments.sampling.width;
      const float* pooled = n == 0 ? nullptr : of.Load(kOp);
      const float* regions = n == 0 ? nullptr : in.Load(kOp);
      std::vector<RoiSamples> samples(static_cast<size_t>(n));
      for (int64_t roi = 0; roi < n; ++roi)
        if (ImageOf(regions + 5 * roi, images) >= 0)
          arguments.Locate(kOp, regions + 5 * roi, height, width, samples[static_cast<size_t>(roi)]);
      // One thread has a plane of its own, with all regions of its image.
      ParallelFor(images * channels, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> room(static_cast<size_t>(width));
        for (int64_t plane = begin; plane < end; ++plane) {
          float* to = results.values() + plane * height * width;
          std::fill_n(to, height * width, 0.0f);
          for (int64_t roi = 0; roi < n; ++roi) {
            if (ImageOf(regions + 5 * roi, images) != plane / channels) continue;
            const float* from = pooled + (roi * channels + plane % channels) * bins;
            samples[static_cast<size_t>(roi)].Spread(from, width, room.data(), to);
          }
        }
      });
      results.Store(kOp);
    });
  }

 private:
  RoiAlignArguments arguments_;
  std::vector<int64_t> shape_;
};

NPU_KERNEL(NPURoiAlignBackward, RoiAlignBackwardKernel);

}  // namespace
}  // namespace npu
