// Measures of overlap of boxes that are stored as columns [4, n], of pairs or of every box with every other.
#pragma once

#include <cmath>

#include "ep/kernels/detection/nan_min_max.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu::detection {

inline constexpr int64_t kPairGrain = 512;  // pairs that are worth another thread

// Double, because areas and distances of close boxes cancel.
struct Corners {
  double x1, y1, x2, y2;

  // Of box i of n; as corners, or as centre and size.
  static Corners Of(const float* boxes, int64_t n, int64_t i, bool centre) {
    const double a = boxes[i], b = boxes[n + i], c = boxes[2 * n + i], d = boxes[3 * n + i];
    if (!centre) return {a, b, c, d};
    return {a - c / 2, b - d / 2, a + c / 2, b + d / 2};
  }
};

struct PairedBoxes {
  bool centre;   // the form of the boxes
  bool crossed;  // every ground truth box with every box: [m, n], otherwise box i with ground truth i
  bool column;   // results [n, 1] rather than [1, n]
};

// Computes metric(box, ground truth) of inputs 0 and 1 into output 0, which has the dtype of input 0.
template <class Metric>
void LaunchPairOverlap(OpContext& ctx, const char* op, PairedBoxes form, Metric metric) {
  const TensorView boxes = ctx.Input(0), truths = ctx.Input(1);
  NPU_OP_CHECK(op, boxes && truths, "expected the tensors self and gtboxes");
  const Shape &a = boxes.shape, &b = truths.shape;
  NPU_OP_CHECK(op, a.rank() == 2 && a[0] == 4 && b.rank() == 2 && b[0] == 4,
               "expected self and gtboxes of shape [4, n], got ", a, " and ", b);
  const int64_t n = a[1], m = b[1];
  NPU_OP_CHECK(op, form.crossed || n == m, "expected as many gtboxes as boxes in self, ", n, ", got ", m);
  const Shape shape = form.column ? Shape{n, 1} : form.crossed ? Shape{m, n} : Shape{1, n};
  const FloatResults results(ctx, ctx.Output(0, boxes.dtype, shape));
  if (results.elements() == 0) return;
  ctx.Launch(op, [=, of = FloatValues(ctx, boxes), with = FloatValues(ctx, truths)] {
    const float *box = of.Load(op), *truth = with.Load(op);
    ParallelFor(results.elements(), kPairGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Corners c = Corners::Of(box, n, i % n, form.centre);
        results.values()[i] =
            static_cast<float>(metric(c, Corners::Of(truth, m, form.crossed ? i / n : i, form.centre)));
      }
    });
    results.Store(op);
  });
}

inline double Intersection(const Corners& a, const Corners& b) {
  return MaxOrNaN(MinOrNaN(a.x2, b.x2) - MaxOrNaN(a.x1, b.x1), 0.0) *
         MaxOrNaN(MinOrNaN(a.y2, b.y2) - MaxOrNaN(a.y1, b.y1), 0.0);
}

// What the distance and the complete IoU have in common.
struct DistanceIou {
  static constexpr double kSmall = 1e-9;
  double iou, value;        // value = iou - distance of the centres^2 / diagonal of the enclosing box^2
  double angle_a, angle_b;  // atan(width / height)

  // `foreground`: the intersection over the area of b instead of over the union.
  DistanceIou(const Corners& a, const Corners& b, bool foreground) {
    const double wa = a.x2 - a.x1, ha = a.y2 - a.y1 + kSmall, wb = b.x2 - b.x1, hb = b.y2 - b.y1 + kSmall;
    const double both = Intersection(a, b);
    iou = both / ((foreground ? wb * hb : wa * ha + wb * hb - both) + kSmall);
    const double w = MaxOrNaN(a.x2, b.x2) - MinOrNaN(a.x1, b.x1), h = MaxOrNaN(a.y2, b.y2) - MinOrNaN(a.y1, b.y1);
    const double dx = b.x1 + b.x2 - a.x1 - a.x2, dy = b.y1 + b.y2 - a.y1 - a.y2;
    value = iou - (dx * dx + dy * dy) / 4 / (w * w + h * h + kSmall);
    angle_a = std::atan(wa / ha);
    angle_b = std::atan(wb / hb);
  }
};

}  // namespace npu::detection
