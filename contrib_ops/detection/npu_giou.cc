// npu_giou(self, gtboxes; trans, is_cross, mode) -> y. The semantics are in npu_giou.py.
#include "contrib_ops/detection/npu_giou.h"

#include "ep/kernels/detection/pair_overlap.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_giou";

double GeneralisedIou(const Corners& a, const Corners& b) {
  const double both = Intersection(a, b);
  const double both_areas = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1);
  const double all = both_areas - both + 1e-16;
  const double outer = (MaxOrNaN(a.x2, b.x2) - MinOrNaN(a.x1, b.x1)) * (MaxOrNaN(a.y2, b.y2) - MinOrNaN(a.y1, b.y1));
  return both / all - (outer - all) / outer;
}

class GiouKernel final : public Kernel {
 public:
  explicit GiouKernel(const KernelInfo& info)
      : trans_(info.attributes.Bool("trans")),
        is_cross_(info.attributes.Bool("is_cross")),
        mode_(info.attributes.Int("mode")) {}

  void Compute(OpContext& ctx) const override {
    NPU_OP_CHECK(kOp, trans_ && !is_cross_ && mode_ == 0, "expected trans True, is_cross False and mode 0, got trans ",
                 trans_ ? "True" : "False", ", is_cross ", is_cross_ ? "True" : "False", " and mode ", mode_);
    LaunchPairOverlap(ctx, kOp, {.centre = true, .crossed = false, .column = true}, GeneralisedIou);
  }

 private:
  bool trans_, is_cross_;
  int64_t mode_;
};

NPU_KERNEL(NPUGiou, GiouKernel);

}  // namespace
}  // namespace npu
