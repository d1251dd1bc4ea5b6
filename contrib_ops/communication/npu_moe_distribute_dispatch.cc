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

  void Compute(OpContext& ctx) const override { dispatch_.Compute<In>(ctx); }

 private:
  Dispatch dispatch_;
};

NPU_RANK_KERNEL(NPUMoeDistributeDispatch, DispatchKernel, kOp, "group_ep");

}  // namespace
}  // namespace npu
