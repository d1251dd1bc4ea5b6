// npu_nms_v4(self, scores, iou_threshold, scores_threshold; max_output_size, pad_to_max_output_size) ->
// selected_indices, valid_outputs. The semantics are in npu_nms_v4.py.
#include "contrib_ops/detection/npu_nms_v4.h"

#include "ep/kernels/detection/greedy_suppression.h"
#include "ep/kernels/detection/suppression.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"

namespace npu {
namespace {

using In = nodes::NPUNmsV4::In;
using Out = nodes::NPUNmsV4::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_nms_v4";

// Returns how many are written to `chosen`.
int32_t Choose(const float* boxes, const float* scores, int64_t n, int64_t most, float overlap, float least,
               int32_t* chosen) {
  ChosenBoxes taken(overlap);
  int32_t count = 0;
  if (most == 0) return count;
  const auto box_at = [boxes](int64_t i) {
    const float* b = boxes + 4 * i;
    return Box::OfCorners(b[0], b[1], b[2], b[3]);
  };
  const auto take = [&](int64_t i) {
    chosen[count++] = static_cast<int32_t>(i);
    return count < most;
  };
  ChooseGreedily(scores, n, 1, [least](float score) { return score > least; }, box_at, taken, take);
  return count;
}

class NmsV4Kernel final : public Kernel {
 public:
  explicit NmsV4Kernel(const KernelInfo& info) : most_(info.attributes.Float("max_output_size")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(In::self), scores = ctx.Input(In::scores);
    NPU_OP_CHECK(
        kOp, boxes && scores && boxes.shape.rank() == 2 && boxes.shape[1] == 4 && scores.shape == Shape{boxes.shape[0]},
        "expected self [N, 4] and scores [N], got ", boxes.shape, " and ", scores.shape);
    CheckBoxes(kOp, boxes.shape[0]);
    CheckCount(kOp, "max_output_size", most_);
    const TensorView overlap = OneValue(ctx, In::iou_threshold, "iou_threshold"),
                     least = OneValue(ctx, In::scores_threshold, "scores_threshold");
    const auto most = static_cast<int64_t>(most_);
    const TensorView chosen = OutputOrRoom(ctx, Out::selected_indices, DType::kInt32, {most});
    const TensorView count = OutputOrRoom(ctx, Out::valid_outputs, DType::kInt32, {});
    ctx.Launch(kOp, [=, of = FloatValues(ctx, boxes), with = FloatValues(ctx, scores)] {
      const float threshold = *overlap.as<const float>();
      CheckOverlap(kOp, threshold);
      auto* indices = chosen.as<int32_t>();
      std::fill_n(indices, most, 0);
      const int64_t n = boxes.shape[0];
      *count.as<int32_t>() =
          n == 0 ? 0 : Choose(of.Load(kOp), with.Load(kOp), n, most, threshold, *least.as<const float>(), indices);
    });
  }

 private:
  static TensorView OneValue(OpContext& ctx, size_t input, const char* name) {
    const TensorView view = ctx.Input(input);
    NPU_OP_CHECK(kOp, view && view.elements() == 1, "expected ", name, " of one value, got shape ", view.shape);
    return view;
  }

  double most_;
};

NPU_KERNEL(NPUNmsV4, NmsV4Kernel);

}  // namespace
}  // namespace npu
