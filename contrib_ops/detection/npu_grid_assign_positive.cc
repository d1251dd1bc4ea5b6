// npu_grid_assign_positive(self, overlaps, box_responsible_flags, max_overlaps, argmax_overlaps, gt_max_overlaps,
// gt_argmax_overlaps; num_gts, pos_iou_thr, min_pos_iou, gt_max_assign_all) -> y. The semantics are in
// npu_grid_assign_positive.py.
#include "contrib_ops/detection/npu_grid_assign_positive.h"

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/segments.h"

namespace npu {
namespace {

using In = nodes::NPUGridAssignPositive::In;
using Out = nodes::NPUGridAssignPositive::Out;

constexpr const char* kOp = "npu_grid_assign_positive";

struct Assigner {
  const void *self, *overlaps, *box_most, *truth_most;
  const uint8_t* flags;
  const int32_t *box_truth, *truth_box;
  int64_t boxes, truths, used;
  float positive, least;
  bool all;
  void* y;

  // Values are compared as float32, which holds those of float16.
  template <class T>
  void Run() const {
    auto* to = static_cast<T*>(y);
    if (y != self) std::memcpy(y, self, static_cast<size_t>(boxes) * sizeof(T));
    for (int64_t i = 0; i < boxes; ++i)
      if (flags[i] != 0 && ToFloat(static_cast<const T*>(box_most)[i]) > positive)
        to[i] = FromFloat<T>(static_cast<float>(box_truth[i]) + 1);
    for (int64_t g = 0; g < std::min(used, truths); ++g) {
      const float most = ToFloat(static_cast<const T*>(truth_most)[g]);
      if (!(most > least)) continue;
      const T number = FromFloat<T>(static_cast<float>(g + 1));
      if (all) {
        const T* row = static_cast<const T*>(overlaps) + g * boxes;
        for (int64_t i = 0; i < boxes; ++i)
          if (flags[i] != 0 && ToFloat(row[i]) == most) to[i] = number;
      } else if (const int64_t i = ReadOnce(truth_box + g); i >= 0 && i < boxes && flags[i] != 0) {
        to[i] = number;
      }
    }
  }
};

class GridAssignPositiveKernel final : public Kernel {
 public:
  explicit GridAssignPositiveKernel(const KernelInfo& info)
      : used_(info.attributes.Int("num_gts")),
        positive_(static_cast<float>(info.attributes.Float("pos_iou_thr"))),
        least_(static_cast<float>(info.attributes.Float("min_pos_iou"))),
        all_(info.attributes.Bool("gt_max_assign_all")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView self = ctx.Input(In::self), truth_most = ctx.Input(In::gt_max_overlaps);
    NPU_OP_CHECK(kOp, self && self.shape.rank() == 1, "expected self of shape [n], got ", self.shape);
    NPU_OP_CHECK(kOp, truth_most && truth_most.shape.rank() == 1, "expected gt_max_overlaps of shape [k], got ",
                 truth_most.shape);
    const int64_t n = self.shape[0], k = truth_most.shape[0];
    const TensorView overlaps = Checked(ctx, In::overlaps, "overlaps", {k, n}),
                     flags = Checked(ctx, In::box_responsible_flags, "box_responsible_flags", {n}),
                     box_most = Checked(ctx, In::max_overlaps, "max_overlaps", {n}),
                     box_truth = Checked(ctx, In::argmax_overlaps, "argmax_overlaps", {n}),
                     truth_box = Checked(ctx, In::gt_argmax_overlaps, "gt_argmax_overlaps", {k});
    CheckDtype("overlaps", overlaps, self);
    CheckDtype("max_overlaps", box_most, self);
    CheckDtype("gt_max_overlaps", truth_most, self);
    const TensorView y = ctx.Output(Out::y, self.dtype, self.shape);
    if (n == 0) return;
    const Assigner assigner{self.data,
                            overlaps.data,
                            box_most.data,
                            truth_most.data,
                            flags.as<const uint8_t>(),
                            box_truth.as<const int32_t>(),
                            truth_box.as<const int32_t>(),
                            n,
                            k,
                            used_,
                            positive_,
                            least_,
                            all_,
                            y.data};
    DispatchFloats(kOp, self.dtype, [&](auto tag) { ctx.Launch(kOp, [assigner] { assigner.Run<decltype(tag)>(); }); });
  }

 private:
  static TensorView Checked(OpContext& ctx, size_t input, const char* name, const Shape& shape) {
    const TensorView view = ctx.Input(input);
    NPU_OP_CHECK(kOp, view && view.shape == shape, "expected ", name, " of shape ", shape, ", got ", view.shape);
    return view;
  }
  static void CheckDtype(const char* name, const TensorView& view, const TensorView& self) {
    NPU_OP_CHECK(kOp, view.dtype == self.dtype, "expected ", name, " of the dtype of self, ", NameOf(self.dtype),
                 ", got ", NameOf(view.dtype));
  }

  int64_t used_;
  float positive_, least_;
  bool all_;
};

NPU_KERNEL(NPUGridAssignPositive, GridAssignPositiveKernel);

}  // namespace
}  // namespace npu
