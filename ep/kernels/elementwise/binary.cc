#include "ep/kernels/elementwise/binary.h"

namespace npu::internal {

void LaunchBinary(OpContext& ctx, const char* op, DType out_dtype, BinaryRow row, int64_t grain) {
  const TensorView a = ctx.Input(0);
  const TensorView b = ctx.Input(1);
  NPU_CHECK(a.dtype == b.dtype, "[", op, "] expected inputs of one type, got ", NameOf(a.dtype), " and ",
            NameOf(b.dtype));
  const Shape shape = BroadcastShapes(op, a.shape, b.shape);
  const TensorView out = ctx.Output(0, out_dtype, shape);
  const auto plan = PlanBroadcast<2>(shape, {a.shape, b.shape});
  if (plan.total == 0) return;
  const int64_t in_size = static_cast<int64_t>(BytesFor(a.dtype, 1));
  const int64_t out_size = static_cast<int64_t>(BytesFor(out_dtype, 1));
  ctx.Launch(
      op, [plan, row, grain, in_size, out_size, pa = a.as<const char>(), pb = b.as<const char>(), po = out.as<char>()] {
        ParallelFor(plan.total, grain, [&](int64_t begin, int64_t end) {
          ForEachRow(plan, begin, end, [&](int64_t to, const std::array<int64_t, 2>& from, int64_t n) {
            row(pa + from[0] * in_size, plan.step[0], pb + from[1] * in_size, plan.step[1], po + to * out_size, n);
          });
        });
      });
}

}  // namespace npu::internal
