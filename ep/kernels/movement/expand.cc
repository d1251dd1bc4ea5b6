#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

// `shape` is one that x's broadcasts to.
void Expand(OpContext& ctx, const char* op, const TensorView& x, const Shape& shape) {
  const auto dense = DenseStrides(x.shape);
  std::array<int64_t, Shape::kMaxRank> strides{};
  const int added = shape.rank() - x.shape.rank();
  for (int d = 0; d < x.shape.rank(); ++d) strides[added + d] = x.shape[d] == 1 ? 0 : dense[d];
  const TensorView y = ctx.Output(0, x.dtype, shape);
  LaunchStridedCopy(ctx, op, shape, strides, BytesFor(x.dtype, 1), y.data, x.data);
}

class ExpandKernel : public Kernel {
 public:
  explicit ExpandKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const Shape target(ReadHostInts("Expand", "shape", ctx.Input(1)));
    for (int64_t extent : target) NPU_CHECK(extent >= 0, "[Expand] expected dimensions >= 0, got shape ", target);
    Expand(ctx, "Expand", x, BroadcastShapes("Expand", x.shape, target));
  }
};

class NPUBroadcastKernel final : public Kernel {
 public:
  explicit NPUBroadcastKernel(const KernelInfo& info) : sizes_(info.attributes.Ints("sizes")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    Shape shape(sizes_);
    const int added = shape.rank() - x.shape.rank();
    bool fits = added >= 0;
    for (int d = 0; fits && d < shape.rank(); ++d) {
      if (shape[d] == -1 && d >= added) shape[d] = x.shape[d - added];
      fits = shape[d] >= 0 && (d < added || x.shape[d - added] == 1 || x.shape[d - added] == shape[d]);
    }
    NPU_CHECK(fits, "[npu_broadcast] expected a size that ", x.shape, " expands to, got ", Shape(sizes_));
    Expand(ctx, "npu_broadcast", x, shape);
  }

 private:
  std::vector<int64_t> sizes_;
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

// npu_broadcast in files of torch_npu's alpha versions.
NPU_ONNX_KERNEL(OfEachType({
    .domain = "npu",
    .type = "NPUBroadcast",
    .inputs = {Input("self", kFixedWidth)},
    .outputs = {Output("expanded", kFixedWidth)},
    .attributes = {{.name = "sizes", .kind = AttrDef::Kind::kInts, .required = true}},
    .make = MakeKernel<NPUBroadcastKernel>,
}));

}  // namespace
}  // namespace npu
