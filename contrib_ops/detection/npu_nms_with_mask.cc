// npu_nms_with_mask(input; iou_threshold) -> selected_boxes, selected_idx, selected_mask. The semantics are in
// npu_nms_with_mask.py.
#include "contrib_ops/detection/npu_nms_with_mask.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ep/kernels/detection/suppression.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/runtime/environment.h"

namespace npu {
namespace {

using In = nodes::NPUNmsWithMask::In;
using Out = nodes::NPUNmsWithMask::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_nms_with_mask";
constexpr int64_t kColumns = 5;  // of a result

class NmsWithMaskKernel final : public Kernel {
 public:
  explicit NmsWithMaskKernel(const KernelInfo& info)
      : overlap_(info.attributes.Float("iou_threshold")), ties_(GenerationFromEnvironment() == Generation::kOlder) {}

  void Compute(OpContext& ctx) const override {
    const TensorView rows = ctx.Input(In::input);
    NPU_OP_CHECK(kOp, rows && rows.shape.rank() == 2 && (rows.shape[1] == kColumns || rows.shape[1] == 8),
                 "expected input of shape [N, 5] or [N, 8], got ", rows.shape);
    CheckOverlap(kOp, overlap_);
    const int64_t n = rows.shape[0], columns = rows.shape[1];
    CheckBoxes(kOp, n);
    const TensorView boxes = OutputOrRoom(ctx, Out::selected_boxes, rows.dtype, {n, kColumns});
    const TensorView numbers = OutputOrRoom(ctx, Out::selected_idx, DType::kInt32, {n});
    const TensorView mask = OutputOrRoom(ctx, Out::selected_mask, DType::kUInt8, {n});
    if (n == 0) return;
    ctx.Launch(kOp, [=, of = FloatValues(ctx, rows), overlap = Exceeded()] {
      const float* values = of.Load(kOp);
      const size_t bytes = BytesFor(rows.dtype, kColumns), step = BytesFor(rows.dtype, columns);
      ChosenBoxes taken(overlap);
      for (int64_t i = 0; i < n; ++i, values += columns) {
        const auto at = static_cast<size_t>(i);
        std::memcpy(boxes.as<char>() + at * bytes, rows.as<const char>() + at * step, bytes);
        numbers.as<int32_t>()[i] = static_cast<int32_t>(i);
        mask.as<uint8_t>()[i] = taken.Add({values[0], values[1], values[2], values[3]}) ? 1 : 0;
      }
    });
  }

 private:
  // What an overlap must exceed: for one of at least the threshold, the float below it.
  float Exceeded() const {
    const auto overlap = static_cast<float>(overlap_);
    return ties_ ? std::max(std::nextafter(overlap, 0.0f), 0.0f) : overlap;
  }

  double overlap_;
  bool ties_;
};

NPU_KERNEL(NPUNmsWithMask, NmsWithMaskKernel);

}  // namespace
}  // namespace npu
