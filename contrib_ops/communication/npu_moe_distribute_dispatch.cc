// npu_moe_distribute_dispatch(x, expert_ids, scales?, x_active_mask?, expert_scales?, …; group_ep, ep_world_size,
// ep_rank_id, moe_expert_num, …) -> expand_x, dynamic_scales, expand_idx, …. The semantics are in
// npu_moe_distribute_dispatch.py.
#include "contrib_ops/communication/npu_moe_distribute_dispatch.h"

#include "ep/kernels/communication/dispatch.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeDispatch::In;

constexpr const char* kOp = "npu_moe_distribute_dispatch";

class DispatchKernel final : public Kernel {
 public:
  explicit DispatchKernel(const KernelInfo& info) : dispatch_(kOp, false, info) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = dispatch_.experts().Find();
    Dispatch::Inputs given;
    CheckForAll(ctx, kOp, group, [&] {
      dispatch_.experts().CheckRank(kOp, group);
      given = {ctx.Input(In::x), ctx.Input(In::expert_ids), ctx.Input(In::scales), ctx.Input(In::x_active_mask),
               ctx.Input(In::expert_scales)};
      dispatch_.Check(given);
    });
    dispatch_.Compute(ctx, group, given);
  }

 private:
  Dispatch dispatch_;
};

NPU_KERNEL(NPUMoeDistributeDispatch, DispatchKernel);

}  // namespace
}  // namespace npu
