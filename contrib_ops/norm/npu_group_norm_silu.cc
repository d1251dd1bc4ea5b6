// npu_group_norm_silu(input, weight?, bias?; group, eps) -> out, mean, rstd. The semantics are in
// npu_group_norm_silu.py.
#include "contrib_ops/norm/npu_group_norm_silu.h"

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/normalization/group_norm.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUGroupNormSilu::In;

constexpr const char* kOp = "npu_group_norm_silu";

class GroupNormSiluKernel final : public Kernel {
 public:
  explicit GroupNormSiluKernel(const KernelInfo& info)
      : group_(info.attributes.Int("group")), eps_(info.attributes.Float("eps")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView input = ctx.Input(In::input), weight = ctx.Input(In::weight), bias = ctx.Input(In::bias);
    NPU_OP_CHECK(kOp, input, "expected the tensor input");
    const TensorView& given = weight ? weight : bias;
    NPU_OP_CHECK(kOp, !weight || !bias || weight.dtype == bias.dtype, "expected weight and bias of one dtype, got ",
                 NameOf(weight.dtype), " and ", NameOf(bias.dtype));
    NPU_OP_CHECK(kOp, !given || given.dtype == input.dtype || given.dtype == DType::kFloat32,
                 "expected weight and bias of input's dtype ", NameOf(input.dtype), " or float32, got ",
                 NameOf(given.dtype));
    const DType statistics = weight ? weight.dtype : input.dtype;
    const GroupNormCall call{kOp, input, weight, bias, group_, eps_, statistics};
    CheckGroupNorm(call, "group");
    LaunchGroupNorm(ctx, call, [](float g) { return Silu(g); });
  }

 private:
  int64_t group_;
  double eps_;
};

NPU_KERNEL(NPUGroupNormSilu, GroupNormSiluKernel);

}  // namespace
}  // namespace npu
