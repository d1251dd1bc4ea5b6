#include "ep/kernels/movement/mapped_copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class TileKernel : public Kernel {
 public:
  explicit TileKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const std::vector<int64_t> repeats = ReadHostInts("Tile", "repeats", ctx.Input(1));
    const int rank = x.shape.rank();
    NPU_CHECK(static_cast<int>(repeats.size()) == rank, "[Tile] expected a repeat for each dimension of ", x.shape,
              ", got ", repeats.size());
    Shape shape;
    for (int d = 0; d < rank; ++d) {
      int64_t dim = 0;
      NPU_CHECK(repeats[d] >= 0 && !__builtin_mul_overflow(x.shape[d], repeats[d], &dim),
                "[Tile] expected repeats >= 0 whose dimensions fit int64, got ", repeats[d]);
      shape.push_back(dim);
    }
    const TensorView y = ctx.Output(0, x.dtype, shape);  // an excessive size fails here, before maps are made
    if (y.elements() == 0) return;
    std::vector<AxisMap> maps(rank);
    for (int d = 0; d < rank; ++d) {
      maps[d].resize(shape[d]);
      for (int64_t i = 0; i < shape[d]; ++i) maps[d][i] = i % x.shape[d];
    }
    LaunchMappedCopy(ctx, "Tile", x, y, std::move(maps), nullptr);
  }
};

NPU_ONNX_KERNEL({
    .type = "Tile",
    .since = 6,
    .until = 13,
    .inputs = {Input("input", kFixedWidth), HostInput("repeats", {DType::kInt64})},
    .outputs = {Output("output", kFixedWidth)},
    .shape_arithmetic = ShapeArithmetic::kStated,
    .make = MakeKernel<TileKernel>,
});

}  // namespace
}  // namespace npu
