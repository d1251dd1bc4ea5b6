// npu_yolo_boxes_encode(self, gt_bboxes, stride; performance_mode) -> y. The semantics are in npu_yolo_boxes_encode.py.
#include "contrib_ops/detection/npu_yolo_boxes_encode.h"

#include <cmath>

#include "ep/kernels/detection/box_rows.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUYoloBoxesEncode::In;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_yolo_boxes_encode";
constexpr double kSmall = 1e-6, kLarge = 65504.0;

class YoloBoxesEncodeKernel final : public Kernel {
 public:
  explicit YoloBoxesEncodeKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const int64_t n = CheckBoxRows(ctx, kOp, "self", "gt_bboxes");
    const TensorView stride = ctx.Input(In::stride);
    NPU_OP_CHECK(kOp, stride && stride.shape == Shape{n}, "expected stride of shape ", Shape{n}, ", got ",
                 stride.shape);
    LaunchBoxRows(ctx, kOp,
                  [steps = stride.as<const int32_t>()](int64_t row, const float* a, const float* g, double* y) {
                    for (int i = 0; i < 2; ++i) {
                      const double shift = (double{g[i]} + g[i + 2]) / 2 - (double{a[i]} + a[i + 2]) / 2;
                      y[i] = Clamped(shift / steps[row] + 0.5, kSmall, 1 - kSmall);
                      const double ratio = (double{g[i + 2]} - g[i]) / (double{a[i + 2]} - a[i]);
                      y[i + 2] = std::log(Clamped(ratio, kSmall, kLarge));
                    }
                  });
  }
};

NPU_KERNEL(NPUYoloBoxesEncode, YoloBoxesEncodeKernel);

}  // namespace
}  // namespace npu
