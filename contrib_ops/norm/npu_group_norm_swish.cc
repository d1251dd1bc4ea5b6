// npu_group_norm_swish(input, weight, bias; num_groups, eps, swish_scale) -> y, mean, rstd. The semantics are in
// npu_group_norm_swish.py.
#include "contrib_ops/norm/npu_group_norm_swish.h"

#include "ep/kernels/normalization/group_norm.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

using In = nodes::NPUGroupNormSwish::In;

constexpr const char* kOp = "npu_group_norm_swish";

class GroupNormSwishKernel final : public Kernel {
 public:
  explicit GroupNormSwishKernel(const KernelInfo& info)
      : groups_(info.attributes.Int("num_groups")),
        eps_(info.attributes.Float("eps")),
        swish_scale_(static_cast<float>(info.attributes.Float("swish_scale"))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView input = ctx.Input(In::input), weight = ctx.Input(In::weight), bias = ctx.Input(In::bias);
    NPU_OP_CHECK(kOp, input && weight && bias, "expected the tensors input, weight and bias");
    NPU_OP_CHECK(kOp, weight.dtype == input.dtype && bias.dtype == input.dtype,
                 "expected input, weight and bias of one dtype, got ", NameOf(input.dtype), ", ", NameOf(weight.dtype),
                 " and ", NameOf(bias.dtype));
    const GroupNormCall call{kOp, input, weight, bias, groups_, eps_, input.dtype};
    CheckGroupNorm(call, "num_groups");
    LaunchGroupNorm(ctx, call, [scale = swish_scale_](float g) { return g * math::Sigmoid(scale * g); });
  }

 private:
  int64_t groups_;
  double eps_;
  float swish_scale_;
};

NPU_KERNEL(NPUGroupNormSwish, GroupNormSwishKernel);

}  // namespace
}  // namespace npu
