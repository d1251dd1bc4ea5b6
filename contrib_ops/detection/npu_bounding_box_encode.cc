// npu_bounding_box_encode(anchor_box, ground_truth_box; means, stds) -> y. The semantics are in
// npu_bounding_box_encode.py.
#include "contrib_ops/detection/npu_bounding_box_encode.h"

#include <cmath>

#include "ep/kernels/detection/box_rows.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_bounding_box_encode";

class BoundingBoxEncodeKernel final : public Kernel {
 public:
  explicit BoundingBoxEncodeKernel(const KernelInfo& info) : means_(info, "means"), stds_(info, "stds") {}

  void Compute(OpContext& ctx) const override {
    CheckBoxRows(ctx, kOp, "anchor_box", "ground_truth_box");
    LaunchBoxRows(ctx, kOp,
                  [means = means_, stds = stds_](int64_t, const float* anchor, const float* truth, double* y) {
                    const PixelBox p(anchor), g(truth);
                    const double deltas[] = {(g.x - p.x) / p.width, (g.y - p.y) / p.height, std::log(g.width / p.width),
                                             std::log(g.height / p.height)};
                    for (int k = 0; k < 4; ++k) y[k] = (deltas[k] - means[k]) / stds[k];
                  });
  }

 private:
  FourNumbers means_, stds_;
};

NPU_KERNEL(NPUBoundingBoxEncode, BoundingBoxEncodeKernel);

}  // namespace
}  // namespace npu
