// npu_ciou(self, gtboxes; trans, is_cross, mode, atan_sub_flag) -> y. The semantics are in npu_ciou.py.
#include "contrib_ops/detection/npu_ciou.h"

#include "ep/kernels/detection/pair_overlap.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_ciou";
constexpr double kFactor = 4 / (M_PI * M_PI);

class CiouKernel final : public Kernel {
 public:
  explicit CiouKernel(const KernelInfo& info)
      : form_{info.attributes.Bool("trans"), info.attributes.Bool("is_cross"), false},
        mode_(info.attributes.Int("mode")) {}

  void Compute(OpContext& ctx) const override {
    NPU_OP_CHECK(kOp, mode_ == 0 || mode_ == 1, "expected mode 0 (IoU) or 1 (IoF), got ", mode_);
    LaunchPairOverlap(ctx, kOp, form_, [foreground = mode_ == 1](const Corners& a, const Corners& b) {
      const DistanceIou of(a, b, foreground);
      const double angle = of.angle_b - of.angle_a, v = kFactor * angle * angle;
      return of.value - v / (1 - of.iou + DistanceIou::kSmall + v) * v;
    });
  }

 private:
  PairedBoxes form_;
  int64_t mode_;
};

NPU_KERNEL(NPUCiou, CiouKernel);

}  // namespace
}  // namespace npu
