// npu_moe_distribute_combine(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, …; group_ep,
// ep_world_size, ep_rank_id, moe_expert_num, …) -> x. The semantics are in npu_moe_distribute_combine.py.
#include "contrib_ops/communication/npu_moe_distribute_combine.h"

#include "ep/kernels/communication/combine.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeCombine::In;

constexpr const char* kOp = "npu_moe_distribute_combine";

class CombineKernel final : public Kernel {
 public:
  explicit CombineKernel(const KernelInfo& info) : combine_(kOp, "expand_idx", false, info) {}

  void Compute(OpContext& ctx) const override { combine_.Compute<In>(ctx); }

 private:
  Combine combine_;
};

NPU_RANK_KERNEL(NPUMoeDistributeCombine, CombineKernel, kOp, "group_ep");

}  // namespace
}  // namespace npu
