// npu_moe_distribute_combine(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, …; group_ep,
// ep_world_size, ep_rank_id, moe_expert_num, …) -> x. The semantics are in npu_moe_distribute_combine.py.
#include "contrib_ops/communication/npu_moe_distribute_combine.h"

#include "ep/kernels/communication/combine.h"
#include "ep/kernels/communication/unused.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeCombine::In;
using Out = nodes::NPUMoeDistributeCombine::Out;

constexpr const char* kOp = "npu_moe_distribute_combine";

class CombineKernel final : public Kernel {
 public:
  explicit CombineKernel(const KernelInfo& info) : combine_(kOp, "expand_idx", false, info) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = combine_.experts().Find();
    CombineInputs given;
    CheckForAll(ctx, kOp, group, [&] {
      combine_.experts().CheckRank(kOp, group);
      CheckNoTensor(kOp, ctx, In::activation_scale, "activation_scale");
      CheckNoTensor(kOp, ctx, In::weight_scale, "weight_scale");
      CheckNoTensor(kOp, ctx, In::group_list, "group_list");
      given.rows = ctx.Input(In::expand_x);
      given.ids = ctx.Input(In::expert_ids);
      given.notes = ctx.Input(In::expand_idx);
      given.ends = ctx.Input(In::ep_send_counts);
      given.weights = ctx.Input(In::expert_scales);
      given.mask = ctx.Input(In::x_active_mask);
      given.carried = ctx.Input(In::expand_scales);
      given.shared = ctx.Input(In::shared_expert_x);
      combine_.Check(given);
    });
    const TensorView x = ctx.Output(Out::x, given.rows.dtype, Shape{given.tokens(), given.width()});
    ctx.Launch(kOp,
               [this, given, group, x, call = combine_.CallOf(given)] { combine_.Run(given, call, group, x.data); });
  }

 private:
  Combine combine_;
};

NPU_KERNEL(NPUMoeDistributeCombine, CombineKernel);

}  // namespace
}  // namespace npu
