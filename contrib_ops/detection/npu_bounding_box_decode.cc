// npu_bounding_box_decode(rois, deltas; means, stds, max_shape, wh_ratio_clip) -> y. The semantics are in
// npu_bounding_box_decode.py.
#include "contrib_ops/detection/npu_bounding_box_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ep/kernels/detection/box_rows.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/environment.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_bounding_box_decode";

class BoundingBoxDecodeKernel final : public Kernel {
 public:
  explicit BoundingBoxDecodeKernel(const KernelInfo& info)
      : means_(info, "means"),
        stds_(info, "stds"),
        image_(info.attributes.Ints("max_shapes")),
        clip_(info.attributes.Float("wh_ratio_clip")),
        newest_(GenerationFromEnvironment() == Generation::kNewest) {}

  void Compute(OpContext& ctx) const override {
    CheckBoxRows(ctx, kOp, "rois", "deltas");
    NPU_OP_CHECK(kOp, image_.size() == 2 && image_[0] > 0 && image_[1] > 0,
                 "expected max_shape of two positive sizes, height and width, got ", Shape(image_));
    NPU_OP_CHECK(kOp, clip_ > 0, "expected wh_ratio_clip > 0, got ", clip_);
    const double most = newest_ ? std::numeric_limits<double>::infinity() : std::abs(std::log(clip_)),
                 width = static_cast<double>(image_[1] - (newest_ ? 0 : 1)),
                 height = static_cast<double>(image_[0] - (newest_ ? 0 : 1));
    LaunchBoxRows(
        ctx, kOp,
        [=, newest = newest_, means = means_, stds = stds_](int64_t, const float* roi, const float* delta, double* y) {
          double d[4];
          for (int k = 0; k < 4; ++k) d[k] = delta[k] * stds[k] + means[k];
          const PixelBox p(roi);
          const double x = p.x + p.width * d[0], half_x = p.width * std::exp(Clamped(d[2], -most, most)) / 2 - 0.5;
          const double z = p.y + p.height * d[1], half_y = p.height * std::exp(Clamped(d[3], -most, most)) / 2 - 0.5;
          y[0] = Clamped(x - half_x, 0.0, width);
          y[1] = Clamped(z - half_y, 0.0, height);
          y[2] = Clamped(x + half_x, 0.0, width);
          y[3] = Clamped(z + half_y, 0.0, height);
          if (newest) std::replace_if(y, y + 4, [](double corner) { return std::isnan(corner); }, 0.0);
        });
  }

 private:
  FourNumbers means_, stds_;
  std::vector<int64_t> image_;
  double clip_;
  bool newest_;
};

NPU_KERNEL(NPUBoundingBoxDecode, BoundingBoxDecodeKernel);

}  // namespace
}  // namespace npu
