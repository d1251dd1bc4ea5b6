// Where moves whole elements, so that one loop per element size serves every type.
#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

template <int64_t c_step, int64_t x_step, int64_t y_step, class T>
void Select(const uint8_t* c, const T* x, const T* y, T* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    // Both are read, so that the choice becomes a blend.
    const T a = x[i * x_step];
    const T b = y[i * y_step];
    out[i] = c[i * c_step] != 0 ? a : b;
  }
}

template <int64_t c_step, class T>
void SelectRow(const uint8_t* c, const T* x, int64_t x_step, const T* y, int64_t y_step, T* out, int64_t n) {
  if (x_step != 0 && y_step != 0) {
    Select<c_step, 1, 1>(c, x, y, out, n);
  } else if (x_step != 0) {
    Select<c_step, 1, 0>(c, x, y, out, n);
  } else if (y_step != 0) {
    Select<c_step, 0, 1>(c, x, y, out, n);
  } else {
    Select<c_step, 0, 0>(c, x, y, out, n);
  }
}

class WhereKernel : public Kernel {
 public:
  explicit WhereKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView c = ctx.Input(0);
    const TensorView x = ctx.Input(1);
    const TensorView y = ctx.Input(2);
    NPU_CHECK(c.dtype == DType::kBool, "[Where] expected a bool condition, got ", NameOf(c.dtype));
    NPU_CHECK(x.dtype == y.dtype && kFixedWidth.Contains(x.dtype), "[Where] expected X and Y of one type, got ",
              NameOf(x.dtype), " and ", NameOf(y.dtype));
    const Shape shape = BroadcastShapes("Where", c.shape, BroadcastShapes("Where", x.shape, y.shape));
    const TensorView out = ctx.Output(0, x.dtype, shape);
    const auto plan = PlanBroadcast<3>(shape, {c.shape, x.shape, y.shape});
    if (plan.total == 0) return;
    DispatchSize(BitsOf(x.dtype) / 8, [&](auto type) {
      using T = decltype(type);
      ctx.Launch("Where",
                 [plan, pc = c.as<const uint8_t>(), px = x.as<const T>(), py = y.as<const T>(), po = out.as<T>()] {
                   ParallelFor(plan.total, kCheapGrain, [&](int64_t begin, int64_t end) {
                     ForEachRow(plan, begin, end, [&](int64_t to, const std::array<int64_t, 3>& from, int64_t n) {
                       const auto row = plan.step[0] != 0 ? &SelectRow<1, T> : &SelectRow<0, T>;
                       row(pc + from[0], px + from[1], plan.step[1], py + from[2], plan.step[2], po + to, n);
                     });
                   });
                 });
    });
  }
};

NPU_ONNX_KERNEL({
    .type = "Where",
    .since = 9,
    .until = 16,
    .inputs = {Input("condition", kBool), Input("X", kFixedWidth), Input("Y", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .may_alias = {{1, 0}, {2, 0}},
    .shape_arithmetic = ShapeArithmetic::kElementwise,
    .make = MakeKernel<WhereKernel>,
});

}  // namespace
}  // namespace npu
