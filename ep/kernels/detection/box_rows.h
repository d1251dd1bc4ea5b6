// Functions of two boxes, row by row: [N, 4] and [N, 4] to [N, 4].
#pragma once

#include "ep/kernels/detection/nan_min_max.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu::detection {

inline constexpr int64_t kBoxGrain = 1024;  // boxes that are worth another thread

// Checks that inputs 0 and 1, called `first` and `second`, are [N, 4] of one dtype; returns N.
inline int64_t CheckBoxRows(OpContext& ctx, const char* op, const char* first, const char* second) {
  const TensorView a = ctx.Input(0), b = ctx.Input(1);
  NPU_OP_CHECK(op, a && b, "expected the tensors ", first, " and ", second);
  NPU_OP_CHECK(op, a.shape.rank() == 2 && a.shape[1] == 4 && b.shape == a.shape, "expected ", first, " and ", second,
               " of one shape [N, 4], got ", a.shape, " and ", b.shape);
  NPU_OP_CHECK(op, a.dtype == b.dtype, "expected ", second, " of the dtype of ", first, ", ", NameOf(a.dtype), ", got ",
               NameOf(b.dtype));
  return a.shape[0];
}

// Computes f(row, a, b, y), which reads a[4] and b[4] and writes y[4] in double, into output 0.
template <class F>
void LaunchBoxRows(OpContext& ctx, const char* op, F f) {
  const TensorView a = ctx.Input(0), b = ctx.Input(1);
  const FloatResults results(ctx, ctx.Output(0, a.dtype, a.shape));
  if (results.elements() == 0) return;
  ctx.Launch(op, [=, first = FloatValues(ctx, a), second = FloatValues(ctx, b)] {
    const float *from = first.Load(op), *with = second.Load(op);
    ParallelFor(results.elements() / 4, kBoxGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double values[4];
        f(i, from + 4 * i, with + 4 * i, values);
        for (int k = 0; k < 4; ++k) results.values()[4 * i + k] = static_cast<float>(values[k]);
      }
    });
    results.Store(op);
  });
}

// The centre and the size of the pixels that a box [x1, y1, x2, y2] covers, both corners included.
struct PixelBox {
  double x, y, width, height;
  explicit PixelBox(const float* b)
      : x((double{b[0]} + b[2]) / 2),
        y((double{b[1]} + b[3]) / 2),
        width(double{b[2]} - b[0] + 1),
        height(double{b[3]} - b[1] + 1) {}
};

// The four numbers of an argument that torch_npu spreads over four attributes: means0 .. means3.
struct FourNumbers {
  double values[4];
  FourNumbers(const KernelInfo& info, const std::string& name) {
    for (int k = 0; k < 4; ++k) values[k] = info.attributes.Float(name + std::to_string(k));
  }
  double operator[](int k) const { return values[k]; }
};

}  // namespace npu::detection
