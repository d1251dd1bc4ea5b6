// npu_iou(bboxes, gtboxes; mode) -> y. The semantics are in npu_iou.py.
#include "contrib_ops/detection/npu_iou.h"

#include "ep/kernels/detection/nan_min_max.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/environment.h"

namespace npu {
namespace {

using In = nodes::NPUIou::In;
using Out = nodes::NPUIou::Out;
using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_iou";
constexpr float kSide = 0.01f;

float Area(float x1, float y1, float x2, float y2) { return (x2 - x1 + kSide) * (y2 - y1 + kSide); }

// One row: the boxes are columns [4, n]; `side`: what is added to the sides of an intersection.
void OverlapRow(const float* __restrict boxes, int64_t n, const float* truth, bool foreground, float side,
                int64_t begin, int64_t end, float* __restrict y) {
  const float *x1 = boxes, *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
  const float gx1 = truth[0], gy1 = truth[1], gx2 = truth[2], gy2 = truth[3], of_truth = Area(gx1, gy1, gx2, gy2);
  for (int64_t i = begin; i < end; ++i) {
    const float both = MaxOrNaN(MinOrNaN(x2[i], gx2) - MaxOrNaN(x1[i], gx1) + side, 0.0f) *
                       MaxOrNaN(MinOrNaN(y2[i], gy2) - MaxOrNaN(y1[i], gy1) + side, 0.0f);
    y[i] = both / (foreground ? of_truth : Area(x1[i], y1[i], x2[i], y2[i]) + of_truth - both);
  }
}

class IouKernel final : public Kernel {
 public:
  explicit IouKernel(const KernelInfo& info)
      : mode_(info.attributes.Int("mode")), side_(GenerationFromEnvironment() == Generation::kNewest ? kSide : 0.0f) {}

  void Compute(OpContext& ctx) const override {
    const TensorView boxes = ctx.Input(In::bboxes), truths = ctx.Input(In::gtboxes);
    NPU_OP_CHECK(kOp, boxes && truths, "expected the tensors bboxes and gtboxes");
    const Shape &a = boxes.shape, &b = truths.shape;
    NPU_OP_CHECK(kOp, a.rank() == 2 && a[1] == 4 && b.rank() == 2 && b[1] == 4,
                 "expected bboxes [N, 4] and gtboxes [G, 4], got ", a, " and ", b);
    NPU_OP_CHECK(kOp, mode_ == 0 || mode_ == 1, "expected mode 0 (IoU) or 1 (IoF), got ", mode_);
    const int64_t n = a[0];
    const FloatResults results(ctx, ctx.Output(Out::y, boxes.dtype, {b[0], n}));
    if (results.elements() == 0) return;
    auto* columns = static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, boxes.elements())));
    ctx.Launch(
        kOp, [=, of = FloatValues(ctx, boxes), with = FloatValues(ctx, truths), foreground = mode_ == 1, side = side_] {
          const float *box = of.Load(kOp), *truth = with.Load(kOp);
          for (int64_t i = 0; i < n; ++i)
            for (int64_t k = 0; k < 4; ++k) columns[k * n + i] = box[4 * i + k];
          ParallelFor(results.elements(), 16384, [&](int64_t begin, int64_t end) {
            while (begin < end) {
              const int64_t row = begin / n, at = begin % n, stop = std::min(n, at + end - begin);
              OverlapRow(columns, n, truth + 4 * row, foreground, side, at, stop, results.values() + row * n);
              begin += stop - at;
            }
          });
          results.Store(kOp);
        });
  }

 private:
  int64_t mode_;
  float side_;
};

NPU_KERNEL(NPUIou, IouKernel);

}  // namespace
}  // namespace npu
