// npu_anchor_response_flags(self; featmap_size, stride, num_base_anchors) -> y. The semantics are in
// npu_anchor_response_flags.py.
#include "contrib_ops/detection/npu_anchor_response_flags.h"

#include <cmath>
#include <cstring>

#include "ep/kernels/detection/nan_min_max.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUAnchorResponseFlags::In;
using Out = nodes::NPUAnchorResponseFlags::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_anchor_response_flags";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

void CheckTwo(const char* what, const std::vector<int64_t>& sizes) {
  bool fits = sizes.size() == 2;
  for (const int64_t size : sizes) fits &= size > 0 && size <= kMost;
  NPU_OP_CHECK(kOp, fits, "expected ", what, " of two positive int32 numbers, got ", Shape(sizes));
}

int64_t Cell(float low, float high, int64_t step, int64_t size) {
  const float place = std::floor((low + high) / 2 / static_cast<float>(step));
  return std::isfinite(place) ? static_cast<int64_t>(Clamped(place, 0.0f, static_cast<float>(size - 1))) : 0;
}

class AnchorResponseFlagsKernel final : public Kernel {
 public:
  explicit AnchorResponseFlagsKernel(const KernelInfo& info)
      : map_(info.attributes.Ints("featmap_sizes")),
        stride_(info.attributes.Ints("strides")),
        anchors_(info.attributes.Int("num_base_anchors")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, boxes && boxes.shape.rank() == 2 && boxes.shape[1] == 4, "expected self of shape [M, 4], got ",
                 boxes.shape);
    CheckTwo("featmap_size", map_);
    CheckTwo("stride", stride_);
    const int64_t height = map_[0], width = map_[1], cells = height * width;
    NPU_OP_CHECK(kOp, anchors_ > 0 && anchors_ <= kMost / cells, "expected num_base_anchors > 0 and at most ", kMost,
                 " flags, got ", anchors_, " for each of ", cells, " cells");
    const TensorView y = ctx.Output(Out::y, DType::kUInt8, {cells * anchors_});
    ctx.Launch(kOp, [=, of = FloatValues(ctx, boxes), x_step = stride_[0], y_step = stride_[1], anchors = anchors_] {
      auto* flags = y.as<uint8_t>();
      std::memset(flags, 0, y.bytes());
      const float* box = boxes.elements() == 0 ? nullptr : of.Load(kOp);
      for (int64_t i = 0; i < boxes.shape[0]; ++i, box += 4) {
        // float rounds a size beyond 2^24 up: the last cell is the last.
        const int64_t row = std::min(Cell(box[1], box[3], y_step, height), height - 1);
        const int64_t column = std::min(Cell(box[0], box[2], x_step, width), width - 1);
        std::memset(flags + (row * width + column) * anchors, 1, static_cast<size_t>(anchors));
      }
    });
  }

 private:
  std::vector<int64_t> map_, stride_;
  int64_t anchors_;
};

NPU_KERNEL(NPUAnchorResponseFlags, AnchorResponseFlagsKernel);

}  // namespace
}  // namespace npu
