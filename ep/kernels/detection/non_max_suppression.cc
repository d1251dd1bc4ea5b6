// NonMaxSuppression (ai.onnx 10, 11): for each batch entry and class, the boxes by descending score that do not overlap
// one chosen before. Boxes of equal score are taken in their order.
#include <algorithm>
#include <vector>

#include "ep/kernels/detection/greedy_suppression.h"
#include "ep/kernels/detection/suppression.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

using detection::Box;
using detection::ChosenBoxes;

constexpr const char* kOp = "NonMaxSuppression";

struct Suppression {
  const float* boxes;   // [batch, count, 4]
  const float* scores;  // [batch, classes, count]
  int64_t batch, classes, count, most;
  float overlap, least;
  bool by_score, centred;  // whether `least` bounds the scores; the form of the boxes
  int64_t* chosen;         // [batch * classes, most]
  int64_t* before;         // of each class, the number of boxes chosen in earlier ones; the last is the total

  void Choose() const {
    ParallelFor(batch * classes, 1, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) before[i + 1] = ChooseOf(i);
    });
    before[0] = 0;
    for (int64_t i = 0; i < batch * classes; ++i) before[i + 1] += before[i];
  }

  void Write(int64_t* y) const {
    for (int64_t i = 0; i < batch * classes; ++i) {
      for (int64_t k = 0; k < before[i + 1] - before[i]; ++k) {
        *y++ = i / classes;
        *y++ = i % classes;
        *y++ = chosen[i * most + k];
      }
    }
  }

 private:
  Box BoxAt(int64_t entry, int64_t i) const {
    const float* b = boxes + (entry * count + i) * 4;
    return centred ? Box::OfCentre(b[0], b[1], b[2], b[3]) : Box::OfCorners(b[0], b[1], b[2], b[3]);
  }

  int64_t ChooseOf(int64_t i) const {
    const auto counts = [this](float score) { return !by_score || score > least; };
    int64_t found = 0;
    ChosenBoxes taken(overlap);
    const auto take = [&](int64_t box) {
      chosen[i * most + found++] = box;
      return found < most;
    };
    detection::ChooseGreedily(
        scores + i * count, count, 1, counts, [&](int64_t box) { return BoxAt(i / classes, box); }, taken, take);
    return found;
  }
};

class NonMaxSuppressionKernel final : public Kernel {
 public:
  explicit NonMaxSuppressionKernel(const KernelInfo& info) : centred_(info.attributes.Bool("center_point_box")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(0), scores = ctx.Input(1);
    const Shape &b = boxes.shape, &s = scores.shape;
    NPU_OP_CHECK(kOp, b.rank() == 3 && s.rank() == 3 && b[2] == 4 && s[0] == b[0] && s[2] == b[1],
                 "expected boxes [N, boxes, 4] and scores [N, classes, boxes], got ", b, " and ", s);
    detection::CheckBoxes(kOp, s[2]);
    const int64_t most = ctx.Input(2) ? ReadHostInt(kOp, "max_output_boxes_per_class", ctx.Input(2)) : 0;
    const float overlap = ReadFloat("iou_threshold", ctx.Input(3)), least = ReadFloat("score_threshold", ctx.Input(4));
    detection::CheckOverlap(kOp, overlap);
    Suppression task{boxes.as<const float>(),
                     scores.as<const float>(),
                     s[0],
                     s[1],
                     s[2],
                     std::min(most, s[2]),
                     overlap,
                     least,
                     ctx.Input(4).present,
                     centred_,
                     nullptr,
                     nullptr};
    const int64_t lists = Shape{s[0], s[1]}.Elements();
    if (task.most <= 0 || lists == 0) {
      ctx.Output(0, DType::kInt64, {0, 3});
      return;
    }
    task.chosen = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, Shape{lists, task.most}.Elements())));
    task.before = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, lists + 1)));
    ctx.Launch(kOp, [task] { task.Choose(); });
    const int64_t total = ReadBack(ctx, task.before + lists);
    const TensorView y = ctx.Output(0, DType::kInt64, {total, 3});
    if (total > 0) ctx.Launch(kOp, [task, to = y.as<int64_t>()] { task.Write(to); });
  }

 private:
  // 0 if absent.
  static float ReadFloat(const char* name, const TensorView& view) {
    if (!view) return 0.0f;
    NPU_OP_CHECK(kOp, view.elements() == 1, "expected ", name, " to be one value, got shape ", view.shape);
    return *view.as<const float>();
  }

  bool centred_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 10,
    .until = 11,
    .inputs = {Input("boxes", {DType::kFloat32}), Input("scores", {DType::kFloat32}),
               OptionalHostInput("max_output_boxes_per_class", kInt64),
               OptionalHostInput("iou_threshold", {DType::kFloat32}),
               OptionalHostInput("score_threshold", {DType::kFloat32})},
    .outputs = {Output("selected_indices", kInt64)},
    .attributes = {IntAttribute("center_point_box", 0)},
    .make = MakeKernel<NonMaxSuppressionKernel>,
});

}  // namespace
}  // namespace npu
