// RoiAlign (ai.onnx 10 to 22): bins of regions, each the mean of bilinear samples or, in mode max, the greatest
// weighted value among them. Computed in float32, or float64 where X is.
#include "ep/kernels/detection/roi_align.h"

#include <string>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/detection/pooled_size.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "RoiAlign";

class OnnxRoiAlignKernel final : public Kernel {
 public:
  explicit OnnxRoiAlignKernel(const KernelInfo& info) {
    const Attributes& a = info.attributes;
    const std::string mode = a.String("mode"), corners = a.String("coordinate_transformation_mode");
    NPU_OP_CHECK(kOp, mode == "avg" || mode == "max", "expected mode avg or max, got ", mode);
    NPU_OP_CHECK(kOp, corners == "half_pixel" || corners == "output_half_pixel",
                 "expected coordinate_transformation_mode half_pixel or output_half_pixel, got ", corners);
    const bool half = corners == "half_pixel";
    sampling_ = {PooledSize(kOp, "output_height", a.Int("output_height")),
                 PooledSize(kOp, "output_width", a.Int("output_width")),
                 a.Int("sampling_ratio"),
                 a.Float("spatial_scale"),
                 half ? 0.5 : 0.0,
                 !half};
    NPU_OP_CHECK(kOp, sampling_.samples >= 0 && static_cast<double>(sampling_.samples) <= kMostSamples,
                 "expected a sampling_ratio from 0 to ", kMostSamples, ", got ", sampling_.samples);
    greatest_ = mode == "max";
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), rois = ctx.Input(1), images = ctx.Input(2);
    const Shape &s = x.shape, &r = rois.shape;
    NPU_OP_CHECK(kOp, s.rank() == 4, "expected X [N, C, H, W], got shape ", s);
    NPU_OP_CHECK(kOp, r.rank() == 2 && r[1] == 4 && rois.dtype == x.dtype, "expected rois [regions, 4] of ",
                 NameOf(x.dtype), ", got ", NameOf(rois.dtype), " ", r);
    NPU_OP_CHECK(kOp, images.shape == Shape{r[0]}, "expected batch_indices of shape ", Shape{r[0]}, ", got ",
                 images.shape);
    const TensorView y = ctx.Output(0, x.dtype, {r[0], s[1], sampling_.height, sampling_.width});
    if (y.elements() == 0) return;
    if (x.dtype == DType::kFloat64) {
      ctx.Launch(kOp, [this, x, rois, images, y] {
        Pool(x.as<const double>(), rois.as<const double>(), x.shape, images, y.as<double>());
      });
      return;
    }
    const FloatResults results(ctx, y);
    ctx.Launch(kOp, [this, images, results, shape = x.shape, of = FloatValues(ctx, x), in = FloatValues(ctx, rois)] {
      const float* regions = in.Load(kOp);
      Pool(of.Load(kOp), regions, shape, images, results.values());
      results.Store(kOp);
    });
  }

 private:
  template <class C>
  void Pool(const C* features, const C* regions, const Shape& x, const TensorView& images, C* results) const {
    const RoiSampling& by = sampling_;
    const int64_t height = x[2], width = x[3];
    const PooledPlanesOf<C> planes{features, images.elements(), x[1], height, width, results, by.height * by.width};
    planes.Run(
        [&](int64_t i, RoiSamplesOf<C>& samples) {
          const C* region = regions + 4 * i;
          NPU_OP_CHECK(kOp, samples.Locate({region[0], region[1], region[2], region[3]}, by, height, width),
                       "expected regions of at most ", kMostSamples, " samples a bin and axis, got more for region ", i,
                       "; give a sampling_ratio");
          return CheckedImage(kOp, ReadOnce(images.as<const int64_t>() + i), x[0]);
        },
        [&](const RoiSamplesOf<C>& samples, const C* plane, C* room, C* pooled) {
          if (greatest_) {
            samples.PoolMax(plane, width, pooled);
          } else {
            samples.Pool(plane, width, room, pooled);
          }
        });
  }

  RoiSampling sampling_{};
  bool greatest_;
};

// Version 10 has no attribute for what was its only mode.
OpDef Definition(int since, int until, const char* corners) {
  return {
      .type = kOp,
      .since = since,
      .until = until,
      .inputs = {Input("X", kAllFloats), Input("rois", kAllFloats), Input("batch_indices", kInt64)},
      .outputs = {Output("Y", kAllFloats)},
      .attributes = {StringAttribute("coordinate_transformation_mode", corners), StringAttribute("mode", "avg"),
                     IntAttribute("output_height", 1), IntAttribute("output_width", 1),
                     IntAttribute("sampling_ratio", 0), FloatAttribute("spatial_scale", 1.0)},
      .make = MakeKernel<OnnxRoiAlignKernel>,
  };
}

NPU_ONNX_KERNEL(Definition(10, 10, "output_half_pixel"));
NPU_ONNX_KERNEL(Definition(16, 22, "half_pixel"));

}  // namespace
}  // namespace npu
