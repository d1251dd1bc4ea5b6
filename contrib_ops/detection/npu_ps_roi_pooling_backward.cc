// npu_ps_roi_pooling_backward(output_grad, rois, input_size; spatial_scale, group_size, output_dim) -> y. The semantics
// are in npu_ps_roi_pooling_backward.py.
#include "contrib_ops/detection/npu_ps_roi_pooling_backward.h"

#include "ep/kernels/detection/position_arguments.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUPsRoiPoolingBackward::In;
using Out = nodes::NPUPsRoiPoolingBackward::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_ps_roi_pooling_backward";

class PsRoiPoolingBackwardKernel final : public Kernel {
 public:
  explicit PsRoiPoolingBackwardKernel(const KernelInfo& info) : arguments_(info) {}

  void Compute(OpContext& ctx) const override {
    const TensorView grad = ctx.Input(In::output_grad), rois = ctx.Input(In::rois), sizes = ctx.Input(In::input_size);
    arguments_.CheckRegions(kOp, rois);
    NPU_OP_CHECK(kOp, sizes && sizes.shape.rank() == 1, "expected input_size as a list");
    const Shape shape(sizes.as<const int64_t>(), static_cast<size_t>(sizes.elements()));
    arguments_.CheckMap(kOp, "input_size", shape);
    for (const int64_t size : shape) {
      NPU_OP_CHECK(kOp, size >= 0 && size <= std::numeric_limits<int32_t>::max(),
                   "expected input_size of int32 sizes, got ", shape);
    }
    const Shape expected = arguments_.PooledShape(rois.shape);
    NPU_OP_CHECK(kOp, grad && grad.shape == expected, "expected output_grad of shape ", expected, ", got ", grad.shape);
    NPU_OP_CHECK(kOp, grad.dtype == rois.dtype, "expected rois of the dtype of output_grad, ", NameOf(grad.dtype),
                 ", got ", NameOf(rois.dtype));
    const PositionBins bins = arguments_.Bins(shape, rois.shape);
    const FloatResults results(ctx, ctx.Output(Out::y, grad.dtype, shape));
    if (results.elements() == 0) return;
    ctx.Launch(kOp, [=, of = FloatValues(ctx, grad), in = FloatValues(ctx, rois)] {
      std::fill_n(results.values(), results.elements(), 0.0f);
      const int64_t regions = bins.batch * bins.regions, channels = bins.MapChannels();
      const float* pooled = regions == 0 ? nullptr : of.Load(kOp);
      const float* boxes = regions == 0 ? nullptr : in.Load(kOp);
      // A channel of all images belongs to one thread, with the bins of all regions that it has.
      ParallelFor(channels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t channel = begin; channel < end; ++channel)
          for (int64_t roi = 0; roi < regions; ++roi)
            Spread(bins, boxes, roi * channels + channel, pooled, results.values());
      });
      results.Store(kOp);
    });
  }

 private:
  static void Spread(const PositionBins& bins, const float* boxes, int64_t i, const float* pooled, float* maps) {
    bins.At(boxes, i, [&](int64_t plane, PixelRange rows, PixelRange columns) {
      const int64_t count = rows.size() * columns.size();
      if (plane < 0 || count == 0) return;
      const float part = pooled[i] / static_cast<float>(count);
      float* to = maps + plane * bins.height * bins.width;
      for (int64_t y = rows.begin; y < rows.end; ++y)
        for (int64_t x = columns.begin; x < columns.end; ++x) to[y * bins.width + x] += part;
    });
  }

  PositionArguments arguments_;
};

NPU_KERNEL(NPUPsRoiPoolingBackward, PsRoiPoolingBackwardKernel);

}  // namespace
}  // namespace npu
