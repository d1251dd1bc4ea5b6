// npu_moe_distribute_dispatch_v2(x, expert_ids, scales?, x_active_mask?, expert_scales?, …; group_ep, ep_world_size,
// ep_rank_id, moe_expert_num, …) -> expand_x, dynamic_scales, assist_info_for_combine, …. The semantics are in
// npu_moe_distribute_dispatch_v2.py.
#include "contrib_ops/communication/npu_moe_distribute_dispatch_v2.h"

#include "ep/kernels/communication/dispatch.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeDispatchV2::In;

constexpr const char* kOp = "npu_moe_distribute_dispatch_v2";

class DispatchV2Kernel final : public Kernel {
 public:
  explicit DispatchV2Kernel(const KernelInfo& info) : dispatch_(kOp, true, info) {}

  void Compute(OpContext& ctx) const override { dispatch_.Compute<In>(ctx); }

 private:
  Dispatch dispatch_;
};

NPU_RANK_KERNEL(NPUMoeDistributeDispatchV2, DispatchV2Kernel, kOp, "group_ep");

}  // namespace
}  // namespace npu
