// DepthToSpace and SpaceToDepth: blocks of positions to channels and back.
#include <array>
#include <string>
#include <utility>

#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

int64_t ReadBlockSize(const char* op, const KernelInfo& info) {
  const int64_t size = info.attributes.Int("blocksize");
  NPU_OP_CHECK(op, size > 0 && size < (int64_t{1} << 30), "expected a blocksize of 1 or more, got ", size);
  return size;
}

void CheckImages(const char* op, const Shape& shape) {
  NPU_OP_CHECK(op, shape.rank() == 4, "expected an input [N, C, H, W], got shape ", shape);
}

// Enqueues y from x seen in the six dimensions `split`, permuted.
void LaunchPermuted(OpContext& ctx, const char* op, const TensorView& x, const Shape& split,
                    const std::array<int, 6>& order, const TensorView& y) {
  const auto strides = DenseStrides(split);
  std::array<int64_t, Shape::kMaxRank> permuted{};
  Shape shape;
  for (size_t d = 0; d < order.size(); ++d) {
    shape.push_back(split[order[d]]);
    permuted[d] = strides[static_cast<size_t>(order[d])];
  }
  LaunchStridedCopy(ctx, op, shape, permuted, BytesFor(x.dtype, 1), y.data, x.data);
}

class DepthToSpaceKernel final : public Kernel {
 public:
  explicit DepthToSpaceKernel(const KernelInfo& info) : block_(ReadBlockSize("DepthToSpace", info)) {
    const std::string mode = info.attributes.String("mode");
    NPU_CHECK(mode == "DCR" || mode == "CRD", "[DepthToSpace] expected mode DCR or CRD, got ", mode);
    depth_first_ = mode == "DCR";
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    CheckImages("DepthToSpace", x.shape);
    const int64_t n = x.shape[0], h = x.shape[2], w = x.shape[3], blocks = block_ * block_;
    NPU_CHECK(x.shape[1] % blocks == 0, "[DepthToSpace] expected channels that blocksize ", block_,
              " squared divides, got shape ", x.shape);
    const int64_t c = x.shape[1] / blocks;
    const TensorView y = ctx.Output(0, x.dtype, {n, c, h * block_, w * block_});
    if (depth_first_) {
      LaunchPermuted(ctx, "DepthToSpace", x, {n, block_, block_, c, h, w}, {0, 3, 4, 1, 5, 2}, y);
    } else {
      LaunchPermuted(ctx, "DepthToSpace", x, {n, c, block_, block_, h, w}, {0, 1, 4, 2, 5, 3}, y);
    }
  }

 private:
  int64_t block_;
  bool depth_first_;
};

class SpaceToDepthKernel final : public Kernel {
 public:
  explicit SpaceToDepthKernel(const KernelInfo& info) : block_(ReadBlockSize("SpaceToDepth", info)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    CheckImages("SpaceToDepth", x.shape);
    const int64_t n = x.shape[0], c = x.shape[1], h = x.shape[2] / block_, w = x.shape[3] / block_;
    NPU_CHECK(h * block_ == x.shape[2] && w * block_ == x.shape[3],
              "[SpaceToDepth] expected height and width that blocksize ", block_, " divides, got shape ", x.shape);
    const TensorView y = ctx.Output(0, x.dtype, {n, c * block_ * block_, h, w});
    LaunchPermuted(ctx, "SpaceToDepth", x, {n, c, h, block_, w, block_}, {0, 3, 5, 1, 2, 4}, y);
  }

 private:
  int64_t block_;
};

NPU_ONNX_KERNEL({
    .type = "DepthToSpace",
    .since = 1,
    .until = 13,
    .inputs = {Input("input", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {RequiredInt("blocksize"), StringAttribute("mode", "DCR")},
    .make = MakeKernel<DepthToSpaceKernel>,
});
NPU_ONNX_KERNEL({
    .type = "SpaceToDepth",
    .since = 1,
    .until = 13,
    .inputs = {Input("input", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {RequiredInt("blocksize")},
    .make = MakeKernel<SpaceToDepthKernel>,
});

}  // namespace
}  // namespace npu
