// npu_rotated_overlaps(self, query_boxes; trans) -> y. The semantics are in npu_rotated_overlaps.py.
#include "contrib_ops/detection/npu_rotated_overlaps.h"

#include "ep/kernels/detection/rotated_pairs.h"

namespace npu {
namespace {

using In = nodes::NPURotatedOverlaps::In;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_rotated_overlaps";

class RotatedOverlapsKernel final : public Kernel {
 public:
  explicit RotatedOverlapsKernel(const KernelInfo& info) : corners_(info.attributes.Bool("trans")) {}

  void Compute(OpContext& ctx) const override {
    CheckRotatedBoxes(kOp, ctx.Input(In::self), ctx.Input(In::query_boxes));
    LaunchRotatedPairs(ctx, kOp, corners_, true, RotatedIntersection);
  }

 private:
  bool corners_;
};

NPU_KERNEL(NPURotatedOverlaps, RotatedOverlapsKernel);

}  // namespace
}  // namespace npu
