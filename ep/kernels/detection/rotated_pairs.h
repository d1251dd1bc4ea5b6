// Measures of rotated boxes [B, N, 5] against others [B, K, 5].
#pragma once

#include "ep/kernels/detection/rotated.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu::detection {

inline void CheckRotatedBoxes(const char* op, const TensorView& boxes, const TensorView& queries) {
  const Shape &a = boxes.shape, &b = queries.shape;
  NPU_OP_CHECK(op, boxes && queries && a.rank() == 3 && a[2] == 5 && b.rank() == 3 && b[2] == 5 && a[0] == b[0],
               "expected self [B, N, 5] and query_boxes [B, K, 5], got ", a, " and ", b);
}

// Computes metric(box, query) of inputs 0 and 1 into output 0: of all pairs [B, N, K], or of box n and query n [B, N].
template <class Metric>
void LaunchRotatedPairs(OpContext& ctx, const char* op, bool corners, bool crossed, Metric metric) {
  const TensorView boxes = ctx.Input(0), queries = ctx.Input(1);
  const int64_t batch = boxes.shape[0], n = boxes.shape[1], k = queries.shape[1];
  const Shape shape = crossed ? Shape{batch, n, k} : Shape{batch, n};
  const FloatResults results(ctx, ctx.Output(0, boxes.dtype, shape));
  if (results.elements() == 0) return;
  ctx.Launch(op, [=, of = FloatValues(ctx, boxes), with = FloatValues(ctx, queries)] {
    const auto at = [corners](const float* b) { return corners ? RotatedBox::OfCorners(b) : RotatedBox::OfCentre(b); };
    const float *box = of.Load(op), *query = with.Load(op);
    ParallelFor(results.elements(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = crossed ? i / k : i, other = crossed ? row / n * k + i % k : i;
        results.values()[i] = static_cast<float>(metric(at(box + 5 * row), at(query + 5 * other)));
      }
    });
    results.Store(op);
  });
}

}  // namespace npu::detection
