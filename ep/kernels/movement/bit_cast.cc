// BitCast (ai.onnx 26): the bytes of the elements as another type of the same size.
#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "BitCast";

class BitCastKernel final : public Kernel {
 public:
  explicit BitCastKernel(const KernelInfo& info) : to_(static_cast<DType>(info.attributes.Int("to"))) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, BitsOf(to_) == BitsOf(x.dtype), "expected a type of the size of ", NameOf(x.dtype), ", got ",
                 NameOf(to_));
    LaunchCopy(ctx, kOp, x, ctx.Output(0, to_, x.shape));
  }

 private:
  DType to_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 26,
    .until = 26,
    .inputs = {Input("input", kAnyWidth)},
    .outputs = {Output("output", kAnyWidth)},
    .attributes = {RequiredInt("to")},
    .make = MakeKernel<BitCastKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      const int64_t to = node.attributes.Int("to");
      if (to > 0 && to < 64 && kAnyWidth.Contains(static_cast<DType>(to))) return "";
      return Concat("BitCast to ONNX type ", to, " is not implemented");
    },
});

}  // namespace
}  // namespace npu
