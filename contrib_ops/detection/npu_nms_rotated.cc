// npu_nms_rotated(self, scores; iou_threshold, scores_threshold, max_output_size, mode) -> selected_index,
// selected_num. The semantics are in npu_nms_rotated.py.
#include "contrib_ops/detection/npu_nms_rotated.h"

#include <algorithm>

#include "ep/kernels/detection/rotated_suppression.h"
#include "ep/kernels/detection/suppression.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

using In = nodes::NPUNmsRotated::In;
using Out = nodes::NPUNmsRotated::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_nms_rotated";

struct RotatedSuppression {
  int64_t count, most;
  double overlap;
  float least;
  bool corners;
  int32_t* chosen;  // [count]
  int64_t* found;

  void Choose(const float* boxes, const float* scores) const {
    std::vector<int64_t> order;
    ByDescendingScore(scores, count, 1, [this](float score) { return score > least; }, order);
    ChosenRotatedBoxes taken(overlap);
    int64_t n = 0;
    for (size_t k = 0; k < order.size() && n < most; ++k)
      if (taken.Add(BoxAt(boxes + 5 * order[k]))) chosen[n++] = static_cast<int32_t>(order[k]);
    *found = n;
  }

 private:
  // Corners come with the opposite angle. Sides that are both negative are those of the same box.
  RotatedBox BoxAt(const float* b) const {
    RotatedBox box = corners ? RotatedBox::OfCorners(b) : RotatedBox::OfCentre(b);
    if (corners) box.degrees = -box.degrees;
    if (box.width < 0 && box.height < 0) box.width = -box.width, box.height = -box.height;
    return box;
  }
};

class NmsRotatedKernel final : public Kernel {
 public:
  explicit NmsRotatedKernel(const KernelInfo& info)
      : overlap_(info.attributes.Float("iou_threshold")),
        least_(info.attributes.Float("scores_threshold")),
        most_(info.attributes.Int("max_output_size")),
        mode_(info.attributes.Int("mode")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(In::self), scores = ctx.Input(In::scores);
    NPU_OP_CHECK(
        kOp, boxes && scores && boxes.shape.rank() == 2 && boxes.shape[1] == 5 && scores.shape == Shape{boxes.shape[0]},
        "expected self [N, 5] and scores [N], got ", boxes.shape, " and ", scores.shape);
    CheckOverlap(kOp, overlap_);
    NPU_OP_CHECK(kOp, most_ >= -1, "expected max_output_size -1 (all) or a number of boxes, got ", most_);
    NPU_OP_CHECK(kOp, mode_ == 0 || mode_ == 1, "expected mode 0 (centre) or 1 (corners), got ", mode_);
    const int64_t n = boxes.shape[0];
    CheckBoxes(kOp, n);
    const RotatedSuppression task{
        .count = n,
        .most = most_ < 0 ? n : most_,
        .overlap = overlap_,
        .least = static_cast<float>(least_),
        .corners = mode_ == 1,
        .chosen = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, n))),
        .found = static_cast<int64_t*>(ctx.Workspace(sizeof(int64_t))),
    };
    ctx.Launch(kOp, [=, of = FloatValues(ctx, boxes), with = FloatValues(ctx, scores)] {
      task.Choose(of.Load(kOp), with.Load(kOp));
    });
    const int64_t found = ReadBack(ctx, task.found);
    const TensorView index = OutputOrRoom(ctx, Out::selected_index, DType::kInt32, {found});
    const TensorView number = OutputOrRoom(ctx, Out::selected_num, DType::kInt32, {1});
    ctx.Launch(kOp, [=] {
      std::copy_n(task.chosen, found, index.as<int32_t>());
      *number.as<int32_t>() = static_cast<int32_t>(found);
    });
  }

 private:
  double overlap_, least_;
  int64_t most_, mode_;
};

NPU_KERNEL(NPUNmsRotated, NmsRotatedKernel);

}  // namespace
}  // namespace npu
