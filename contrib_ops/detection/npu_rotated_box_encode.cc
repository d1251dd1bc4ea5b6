// npu_rotated_box_encode(self, gt_bboxes, weight) -> y. The semantics are in npu_rotated_box_encode.py.
#include "contrib_ops/detection/npu_rotated_box_encode.h"

#include "ep/kernels/detection/rotated_coder.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_rotated_box_encode";

class RotatedBoxEncodeKernel final : public Kernel {
 public:
  explicit RotatedBoxEncodeKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    LaunchRotatedCoder(ctx, kOp, "gt_bboxes", [](const double* a, const double* b, const double* weight, double* y) {
      const TangentBox p(a), g(b);
      const double deltas[] = {(g.x - p.x) / p.width, (g.y - p.y) / p.height, std::log(g.width / p.width),
                               std::log(g.height / p.height), g.tangent - p.tangent};
      for (int k = 0; k < 5; ++k) y[k] = deltas[k] * weight[k];
    });
  }
};

NPU_KERNEL(NPURotatedBoxEncode, RotatedBoxEncodeKernel);

}  // namespace
}  // namespace npu
