// npu_moe_distribute_combine_v2(expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales, …;
// group_ep, ep_world_size, ep_rank_id, moe_expert_num, …) -> x. The semantics are in npu_moe_distribute_combine_v2.py.
#include "contrib_ops/communication/npu_moe_distribute_combine_v2.h"

#include "ep/kernels/communication/combine.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeCombineV2::In;

constexpr const char* kOp = "npu_moe_distribute_combine_v2";

class CombineV2Kernel final : public Kernel {
 public:
  explicit CombineV2Kernel(const KernelInfo& info) : combine_(kOp, "assist_info_for_combine", true, info) {}

  void Compute(OpContext& ctx) const override { combine_.Compute<In>(ctx); }

 private:
  Combine combine_;
};

NPU_RANK_KERNEL(NPUMoeDistributeCombineV2, CombineV2Kernel, kOp, "group_ep");

}  // namespace
}  // namespace npu
