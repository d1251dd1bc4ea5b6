// npu_moe_distribute_combine_v2(expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales, …;
// group_ep, ep_world_size, ep_rank_id, moe_expert_num, …) -> x. The semantics are in npu_moe_distribute_combine_v2.py.
#include "contrib_ops/communication/npu_moe_distribute_combine_v2.h"

#include "ep/kernels/communication/combine.h"
#include "ep/kernels/communication/unused.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeCombineV2::In;
using Out = nodes::NPUMoeDistributeCombineV2::Out;

constexpr const char* kOp = "npu_moe_distribute_combine_v2";

class CombineV2Kernel final : public Kernel {
 public:
  explicit CombineV2Kernel(const KernelInfo& info) : combine_(kOp, "assist_info_for_combine", true, info) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = combine_.experts().Find();
    CombineInputs given;
    CheckForAll(ctx, kOp, group, [&] {
      combine_.experts().CheckRank(kOp, group);
      CheckNoTensor(kOp, ctx, In::elastic_info, "elastic_info");
      CheckNoTensor(kOp, ctx, In::performance_info, "performance_info");
      given = {ctx.Input(In::expand_x),
               ctx.Input(In::expert_ids),
               ctx.Input(In::assist_info_for_combine),
               ctx.Input(In::ep_send_counts),
               ctx.Input(In::expert_scales),
               ctx.Input(In::x_active_mask),
               ctx.Input(In::expand_scales),
               ctx.Input(In::shared_expert_x),
               ctx.Input(In::ori_x),
               ctx.Input(In::const_expert_alpha_1),
               ctx.Input(In::const_expert_alpha_2),
               ctx.Input(In::const_expert_v)};
      combine_.Check(given);
    });
    const TensorView x = ctx.Output(Out::x, given.rows.dtype, Shape{given.tokens(), given.width()});
    ctx.Launch(kOp,
               [this, given, group, x, call = combine_.CallOf(given)] { combine_.Run(given, call, group, x.data); });
  }

 private:
  Combine combine_;
};

NPU_KERNEL(NPUMoeDistributeCombineV2, CombineV2Kernel);

}  // namespace
}  // namespace npu
