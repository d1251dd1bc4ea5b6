// npu_batch_nms(self, scores; score_threshold, iou_threshold, max_size_per_class, max_total_size,
// change_coordinate_frame, transpose_box) -> nmsed_boxes, nmsed_scores, nmsed_classes, nmsed_num. The semantics are in
// npu_batch_nms.py.
#include "contrib_ops/detection/npu_batch_nms.h"

#include "ep/kernels/detection/suppression.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"

namespace npu {
namespace {

using In = nodes::NPUBatchNms::In;
using Out = nodes::NPUBatchNms::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_batch_nms";
constexpr float kSmallestUnion = 1e-12f;

struct Candidate {
  float score;
  int64_t box, of_class;
};

struct BatchSuppression {
  int64_t count, classes, forms;  // forms: 1, or as many as classes
  bool transposed;
  float least, overlap;
  int64_t per_class, total;
  const float *boxes, *scores;
  float *to_boxes, *to_scores, *to_classes;
  int32_t* found;

  Box BoxAt(int64_t image, int64_t i, int64_t form) const {
    const float* b = boxes + image * count * forms * 4;
    const int64_t step = transposed ? count : 1;
    b += transposed ? form * 4 * count + i : (i * forms + form) * 4;
    return {b[step], b[0], b[3 * step], b[2 * step]};  // from y1, x1, y2, x2
  }

  void Choose(int64_t image) const {
    std::vector<Candidate> candidates;
    std::vector<int64_t> order;
    for (int64_t c = 0; c < classes; ++c) {
      const float* of_class = scores + image * count * classes + c;
      ByDescendingScore(of_class, count, classes, [this](float score) { return score > least; }, order);
      ChosenBoxes taken(overlap, kSmallestUnion);
      for (size_t k = 0; k < order.size() && static_cast<int64_t>(taken.size()) < per_class; ++k) {
        const Box box = BoxAt(image, order[k], std::min(c, forms - 1));
        if (box.bottom > box.top && box.right > box.left && taken.Add(box))
          candidates.push_back({of_class[order[k] * classes], order[k], c});
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    const int64_t n = std::min(total, static_cast<int64_t>(candidates.size()));
    found[image] = static_cast<int32_t>(n);
    for (int64_t k = 0; k < n; ++k) {
      const Candidate& candidate = candidates[static_cast<size_t>(k)];
      const Box box = BoxAt(image, candidate.box, std::min(candidate.of_class, forms - 1));
      const int64_t at = image * total + k;
      const float corners[] = {box.top, box.left, box.bottom, box.right};
      std::copy(corners, corners + 4, to_boxes + 4 * at);
      to_scores[at] = candidate.score;
      to_classes[at] = static_cast<float>(candidate.of_class);
    }
  }
};

class BatchNmsKernel final : public Kernel {
 public:
  explicit BatchNmsKernel(const KernelInfo& info)
      : least_(info.attributes.Float("score_threshold")),
        overlap_(info.attributes.Float("iou_threshold")),
        per_class_(info.attributes.Int("max_size_per_class")),
        total_(info.attributes.Int("max_total_size")),
        transposed_(info.attributes.Bool("transpose_box")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(In::self), scores = ctx.Input(In::scores);
    const Shape &b = boxes.shape, &s = scores.shape;
    NPU_OP_CHECK(kOp, boxes && scores && b.rank() == 4 && s.rank() == 3,
                 "expected self of rank 4 and scores of rank 3, got ", b, " and ", s);
    const Shape form = transposed_ ? Shape{b[0], b[3], b[1], b[2]} : b;
    NPU_OP_CHECK(kOp, form[0] == s[0] && form[1] == s[1] && (form[2] == 1 || form[2] == s[2]) && form[3] == 4,
                 "expected self [B, N, q, 4], or transposed [B, q, 4, N], for scores [B, N, C] with q 1 or C, got ", b,
                 " and ", s);
    NPU_OP_CHECK(kOp, boxes.dtype == scores.dtype, "expected scores of the dtype of self, ", NameOf(boxes.dtype),
                 ", got ", NameOf(scores.dtype));
    CheckOverlap(kOp, overlap_);
    CheckBoxes(kOp, s[1]);
    CheckCount(kOp, "max_size_per_class", static_cast<double>(per_class_));
    CheckCount(kOp, "max_total_size", static_cast<double>(total_));
    const int64_t batch = s[0];
    const FloatResults to_boxes(ctx, OutputOrRoom(ctx, Out::nmsed_boxes, boxes.dtype, {batch, total_, 4})),
        to_scores(ctx, OutputOrRoom(ctx, Out::nmsed_scores, boxes.dtype, {batch, total_})),
        to_classes(ctx, OutputOrRoom(ctx, Out::nmsed_classes, boxes.dtype, {batch, total_}));
    const TensorView found = OutputOrRoom(ctx, Out::nmsed_num, DType::kInt32, {batch});
    if (batch == 0) return;
    BatchSuppression task{.count = s[1],
                          .classes = s[2],
                          .forms = form[2],
                          .transposed = transposed_,
                          .least = static_cast<float>(least_),
                          .overlap = static_cast<float>(overlap_),
                          .per_class = per_class_,
                          .total = total_,
                          .boxes = nullptr,
                          .scores = nullptr,
                          .to_boxes = to_boxes.values(),
                          .to_scores = to_scores.values(),
                          .to_classes = to_classes.values(),
                          .found = found.as<int32_t>()};
    ctx.Launch(kOp, [=, of = FloatValues(ctx, boxes), with = FloatValues(ctx, scores)]() mutable {
      task.boxes = of.Load(kOp);
      task.scores = with.Load(kOp);
      for (const FloatResults& results : {to_boxes, to_scores, to_classes})
        std::fill_n(results.values(), results.elements(), 0.0f);
      ParallelFor(batch, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) task.Choose(i);
      });
      for (const FloatResults& results : {to_boxes, to_scores, to_classes}) results.Store(kOp);
    });
  }

 private:
  double least_, overlap_;
  int64_t per_class_, total_;
  bool transposed_;
};

NPU_KERNEL(NPUBatchNms, BatchNmsKernel);

}  // namespace
}  // namespace npu
