// npu_rotated_iou(self, query_boxes; trans, mode, is_cross, v_threshold, e_threshold) -> y. The semantics are in
// npu_rotated_iou.py.
#include "contrib_ops/detection/npu_rotated_iou.h"

#include "ep/kernels/detection/rotated_pairs.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPURotatedIou::In;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_rotated_iou";

class RotatedIouKernel final : public Kernel {
 public:
  explicit RotatedIouKernel(const KernelInfo& info)
      : corners_(info.attributes.Bool("trans")),
        crossed_(info.attributes.Bool("is_cross")),
        without_thresholds_(info.attributes.Float("v_threshold") == 0 && info.attributes.Float("e_threshold") == 0),
        mode_(info.attributes.Int("mode")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(In::self), queries = ctx.Input(In::query_boxes);
    CheckRotatedBoxes(kOp, boxes, queries);
    NPU_OP_CHECK(kOp, mode_ == 0 || mode_ == 1, "expected mode 0 (IoU) or 1 (IoF), got ", mode_);
    NPU_OP_CHECK(kOp, crossed_ || boxes.shape[1] == queries.shape[1], "expected as many query_boxes as boxes in self, ",
                 boxes.shape[1], ", got ", queries.shape[1]);
    NPU_OP_CHECK(kOp, without_thresholds_,
                 "expected v_threshold and e_threshold 0: torch_npu does not say what others do");
    LaunchRotatedPairs(ctx, kOp, corners_, crossed_, [of_box = mode_ == 1](const RotatedBox& a, const RotatedBox& b) {
      const double both = RotatedIntersection(a, b);
      if (both == 0) return 0.0;
      return both / (of_box ? a.Area() : a.Area() + b.Area() - both + 1e-6);
    });
  }

 private:
  bool corners_, crossed_, without_thresholds_;
  int64_t mode_;
};

NPU_KERNEL(NPURotatedIou, RotatedIouKernel);

}  // namespace
}  // namespace npu
