// npu_bounding_box_encode(anchor_box, ground_truth_box; means, stds) -> y. The semantics are in
// npu_bounding_box_encode.py.
#include "contrib_ops/detection/npu_bounding_box_encode.h"

#include <algorithm>
#include <cmath>

#include "ep/kernels/detection/box_rows.h"
#include "ep/kernels/float16_rounding.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_bounding_box_encode";

class BoundingBoxEncodeKernel final : public Kernel {
 public:
  explicit BoundingBoxEncodeKernel(const KernelInfo& info) : means_(info, "means"), stds_(info, "stds") {}

  void Compute(OpContext& ctx) const override {
    CheckBoxRows(ctx, kOp, "anchor_box", "ground_truth_box");
    const bool rounds = ctx.Input(0).dtype == DType::kFloat16;
    LaunchBoxRows(ctx, kOp,
                  [means = means_, stds = stds_, rounds](int64_t, const float* anchor, const float* truth, double* y) {
                    const PixelBox p(anchor), g(truth);
                    const double exact[] = {(g.x - p.x) / p.width, (g.y - p.y) / p.height, std::log(g.width / p.width),
                                            std::log(g.height / p.height)};
                    float deltas[4];
                    std::copy_n(exact, 4, deltas);
                    if (rounds) RoundToFloat16<4>(deltas, 4);
                    for (int k = 0; k < 4; ++k) y[k] = ((rounds ? deltas[k] : exact[k]) - means[k]) / stds[k];
                  });
  }

 private:
  FourNumbers means_, stds_;
};

NPU_KERNEL(NPUBoundingBoxEncode, BoundingBoxEncodeKernel);

}  // namespace
}  // namespace npu
