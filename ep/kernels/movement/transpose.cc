#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

class TransposeKernel : public Kernel {
 public:
  explicit TransposeKernel(const KernelInfo& info) : TransposeKernel(info, "Transpose", "perm") {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    NPU_OP_CHECK(op_, reverse_ || static_cast<int>(perm_.size()) == rank, "expected perm of ", rank, " axes for shape ",
                 x.shape, ", got ", perm_.size());
    const auto strides = DenseStrides(x.shape);
    Shape shape;
    std::array<int64_t, Shape::kMaxRank> permuted{};
    uint32_t seen = 0;
    for (int d = 0; d < rank; ++d) {
      const int axis = reverse_ ? rank - 1 - d : NormalizeAxis(op_, perm_[d], rank);
      NPU_OP_CHECK(op_, (seen & (1u << axis)) == 0, "expected perm to name each axis once, got axis ", axis, " twice");
      seen |= 1u << axis;
      shape.push_back(x.shape[axis]);
      permuted[d] = strides[axis];
    }
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (BitsOf(x.dtype) < 8) {
      LaunchNarrow(ctx, x, y, permuted);
    } else {
      LaunchStridedCopy(ctx, op_, shape, permuted, BytesFor(x.dtype, 1), y.data, x.data);
    }
  }

 protected:
  TransposeKernel(const KernelInfo& info, const char* op, const char* perm)
      : op_(op), reverse_(!info.attributes.Has(perm)), perm_(info.attributes.Ints(perm)) {}

 private:
  // Elements that share bytes are moved as bytes of their own.
  void LaunchNarrow(OpContext& ctx, const TensorView& x, const TensorView& y,
                    const std::array<int64_t, Shape::kMaxRank>& permuted) const {
    const int64_t n = x.elements();
    if (n == 0) return;
    auto* from = static_cast<uint8_t*>(ctx.Workspace(static_cast<size_t>(n)));
    auto* to = static_cast<uint8_t*>(ctx.Workspace(static_cast<size_t>(n)));
    ctx.Launch(op_, [=] {
      ForNarrowBlocks(
          n, [&](int64_t first, int64_t count) { UnpackIntegers(x.dtype, x.data, first, count, from + first); });
    });
    LaunchStridedCopy(ctx, op_, y.shape, permuted, 1, to, from);
    ctx.Launch(op_, [=] {
      ForNarrowBlocks(n,
                      [&](int64_t first, int64_t count) { PackIntegers(y.dtype, to + first, first, count, y.data); });
    });
  }

  const char* op_;
  bool reverse_;
  std::vector<int64_t> perm_;
};

class NPUTransposeKernel final : public TransposeKernel {
 public:
  explicit NPUTransposeKernel(const KernelInfo& info) : TransposeKernel(info, "npu_transpose", "perms") {}
};

NPU_ONNX_KERNEL({
    .type = "Transpose",
    .since = 1,
    .until = 25,
    .inputs = {Input("data", kAnyWidth)},
    .outputs = {Output("transposed", kAnyWidth)},
    .attributes = {IntsAttribute("perm")},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<TransposeKernel>,
});

// npu_transpose in files of torch_npu's alpha versions.
NPU_ONNX_KERNEL(OfEachType({
    .domain = "npu",
    .type = "NPUTranspose",
    .inputs = {Input("self", kFixedWidth)},
    .outputs = {Output("transposed", kFixedWidth)},
    .attributes = {{.name = "perms", .kind = AttrDef::Kind::kInts, .required = true},
                   IntAttribute("require_contiguous", 1)},
    .make = MakeKernel<NPUTransposeKernel>,
}));

}  // namespace
}  // namespace npu
