// NonZero (ai.onnx 9, 13): the coordinates of the elements that differ from zero, a row for each dimension.
#include <numeric>

#include "ep/kernels/indexing/positions.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

constexpr const char* kOp = "NonZero";

class NonZeroKernel final : public Kernel {
 public:
  explicit NonZeroKernel(const KernelInfo& /*info*/) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int64_t n = x.elements(), blocks = positions::BlocksOf(n);
    if (n == 0) {
      ctx.Output(0, DType::kInt64, {x.shape.rank(), 0});
      return;
    }
    DispatchTypes(kOp, x.dtype, FixedWidthTypes{}, [&](auto type) {
      using T = decltype(type);
      const T* from = x.as<const T>();
      auto* before = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, blocks + 1)));
      ctx.Launch(kOp, [=] {
        before[0] = 0;
        positions::Count(from, n, before + 1);
        std::partial_sum(before, before + blocks + 1, before);
      });
      const int64_t count = ReadBack(ctx, before + blocks);
      const TensorView y = ctx.Output(0, DType::kInt64, {x.shape.rank(), count});
      if (y.elements() == 0) return;
      ctx.Launch(kOp, [=, shape = x.shape, to = y.as<int64_t>()] {
        positions::Write(kOp, shape, from, before, {to, 1, count});
      });
    });
  }
};

NPU_ONNX_KERNEL({
    .type = "NonZero",
    .since = 9,
    .until = 13,
    .inputs = {Input("X", kFixedWidth)},
    .outputs = {Output("Y", kInt64)},
    .make = MakeKernel<NonZeroKernel>,
});

}  // namespace
}  // namespace npu
