// Functions of two sets of rotated boxes that are stored as planes [B, 5, N], with a weight for each plane.
#pragma once

#include <cmath>

#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu::detection {

// Centre, size and the tangent of the angle of a box x1, y1, x2, y2, degrees.
struct TangentBox {
  double x, y, width, height, tangent;

  explicit TangentBox(const double* b)
      : x((b[0] + b[2]) / 2),
        y((b[1] + b[3]) / 2),
        width(b[2] - b[0]),
        height(b[3] - b[1]),
        tangent(std::tan(b[4] * M_PI / 180)) {}
};

// Computes f(a[5], b[5], weight[5], y[5]) of inputs 0, 1 and 2, the second called `second`, into output 0.
template <class F>
void LaunchRotatedCoder(OpContext& ctx, const char* op, const char* second, F f) {
  const TensorView a = ctx.Input(0), b = ctx.Input(1), weight = ctx.Input(2);
  NPU_OP_CHECK(op, a && b && a.shape.rank() == 3 && a.shape[1] == 5 && b.shape == a.shape, "expected self and ", second,
               " of one shape [B, 5, N], got ", a.shape, " and ", b.shape);
  NPU_OP_CHECK(op, weight && weight.shape == Shape{5}, "expected weight of shape [5], got ", weight.shape);
  NPU_OP_CHECK(op, a.dtype == b.dtype && a.dtype == weight.dtype, "expected ", second,
               " and weight of the dtype of self, ", NameOf(a.dtype), ", got ", NameOf(b.dtype), " and ",
               NameOf(weight.dtype));
  const FloatResults results(ctx, ctx.Output(0, a.dtype, a.shape));
  if (results.elements() == 0) return;
  ctx.Launch(op, [=, first = FloatValues(ctx, a), other = FloatValues(ctx, b), weights = FloatValues(ctx, weight)] {
    const float *from = first.Load(op), *with = other.Load(op), *scale = weights.Load(op);
    const int64_t n = a.shape[2];
    constexpr int64_t kGrain = 256;  // boxes that are worth another thread
    ParallelFor(a.shape[0] * n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / n * 5 * n + i % n;
        double box[5], second_box[5], factors[5], y[5];
        for (int k = 0; k < 5; ++k) {
          box[k] = from[at + k * n];
          second_box[k] = with[at + k * n];
          factors[k] = scale[k];
        }
        f(box, second_box, factors, y);
        for (int k = 0; k < 5; ++k) results.values()[at + k * n] = static_cast<float>(y[k]);
      }
    });
    results.Store(op);
  });
}

}  // namespace npu::detection
