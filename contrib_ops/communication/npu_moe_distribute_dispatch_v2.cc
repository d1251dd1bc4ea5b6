// npu_moe_distribute_dispatch_v2(x, expert_ids, scales?, x_active_mask?, expert_scales?, …; group_ep, ep_world_size,
// ep_rank_id, moe_expert_num, …) -> expand_x, dynamic_scales, assist_info_for_combine, …. The semantics are in
// npu_moe_distribute_dispatch_v2.py.
#include "contrib_ops/communication/npu_moe_distribute_dispatch_v2.h"

#include "ep/kernels/communication/dispatch.h"
#include "ep/kernels/communication/unused.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeDispatchV2::In;

constexpr const char* kOp = "npu_moe_distribute_dispatch_v2";

class DispatchV2Kernel final : public Kernel {
 public:
  explicit DispatchV2Kernel(const KernelInfo& info) : dispatch_(kOp, true, info) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = dispatch_.experts().Find();
    Dispatch::Inputs given;
    CheckForAll(ctx, kOp, group, [&] {
      dispatch_.experts().CheckRank(kOp, group);
      CheckNoTensor(kOp, ctx, In::elastic_info, "elastic_info");
      CheckNoTensor(kOp, ctx, In::performance_info, "performance_info");
      given = {ctx.Input(In::x), ctx.Input(In::expert_ids), ctx.Input(In::scales), ctx.Input(In::x_active_mask),
               ctx.Input(In::expert_scales)};
      dispatch_.Check(given);
    });
    dispatch_.Compute(ctx, group, given);
  }

 private:
  Dispatch dispatch_;
};

NPU_KERNEL(NPUMoeDistributeDispatchV2, DispatchV2Kernel);

}  // namespace
}  // namespace npu
