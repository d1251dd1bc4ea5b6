// npu_diou(self, gtboxes; trans, is_cross, mode) -> y. The semantics are in npu_diou.py.
#include "contrib_ops/detection/npu_diou.h"

#include "ep/kernels/detection/pair_overlap.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_diou";

class DiouKernel final : public Kernel {
 public:
  explicit DiouKernel(const KernelInfo& info)
      : form_{info.attributes.Bool("trans"), info.attributes.Bool("is_cross"), false},
        mode_(info.attributes.Int("mode")) {}

  void Compute(OpContext& ctx) const override {
    NPU_OP_CHECK(kOp, mode_ == 0 || mode_ == 1, "expected mode 0 (IoU) or 1 (IoF), got ", mode_);
    LaunchPairOverlap(ctx, kOp, form_, [foreground = mode_ == 1](const Corners& a, const Corners& b) {
      return DistanceIou(a, b, foreground).value;
    });
  }

 private:
  PairedBoxes form_;
  int64_t mode_;
};

NPU_KERNEL(NPUDiou, DiouKernel);

}  // namespace
}  // namespace npu
