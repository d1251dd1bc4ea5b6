#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class ExpandKernel : public Kernel {
 public:
  explicit ExpandKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const Shape target(ReadHostInts("Expand", "shape", ctx.Input(1)));
    for (int64_t extent : target) NPU_CHECK(extent >= 0, "[Expand] expected dimensions >= 0, got shape ", target);
    const Shape shape = BroadcastShapes("Expand", x.shape, target);
    const auto dense = DenseStrides(x.shape);
    std::array<int64_t, Shape::kMaxRank> strides{};
    const int added = shape.rank() - x.shape.rank();
    for (int d = 0; d < x.shape.rank(); ++d) strides[added + d] = x.shape[d] == 1 ? 0 : dense[d];
    const TensorView y = ctx.Output(0, x.dtype, shape);
    LaunchStridedCopy(ctx, "Expand", shape, strides, BytesFor(x.dtype, 1), y.data, x.data);
  }
};

NPU_ONNX_KERNEL({
    .type = "Expand",
    .since = 8,
    .until = 13,
    .inputs = {Input("input", kFixedWidth), HostInput("shape", {DType::kInt64})},
    .outputs = {Output("output", kFixedWidth)},
    .shape_arithmetic = ShapeArithmetic::kStated,
    .make = MakeKernel<ExpandKernel>,
});

}  // namespace
}  // namespace npu
