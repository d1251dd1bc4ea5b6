// npu_moe_distribute_combine_add_rms_norm(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, residual_x,
// gamma, …; group_ep, ep_world_size, ep_rank_id, moe_expert_num, …, norm_eps) -> y, rstd, x. The semantics are in
// npu_moe_distribute_combine_add_rms_norm.py.
#include "contrib_ops/communication/npu_moe_distribute_combine_add_rms_norm.h"

#include "ep/kernels/communication/combine.h"
#include "ep/kernels/normalization/add_rms_norm.h"
#include "ep/kernels/output_or_room.h"

namespace npu {
namespace {

using In = nodes::NPUMoeDistributeCombineAddRmsNorm::In;
using Out = nodes::NPUMoeDistributeCombineAddRmsNorm::Out;

constexpr const char* kOp = "npu_moe_distribute_combine_add_rms_norm";

class CombineAddRmsNormKernel final : public Kernel {
 public:
  explicit CombineAddRmsNormKernel(const KernelInfo& info)
      : combine_(kOp, "expand_idx", true, info), epsilon_(info.attributes.Float("norm_eps")) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = combine_.Find(ctx);
    const TensorView residual = ctx.Input(In::residual_x), gamma = ctx.Input(In::gamma);
    const CombineInputs given = CheckForAll(ctx, kOp, group, [&] {
      const CombineInputs read = combine_.Read<In>(ctx, group);
      combine_.CheckLike("residual_x", residual, read.rows.dtype, {read.tokens(), 1, read.width()});
      combine_.CheckLike("gamma", gamma, read.rows.dtype, {read.width()});
      return read;
    });
    const DType dtype = given.rows.dtype;
    const int64_t rows = given.tokens(), width = given.width();
    const TensorView y = ctx.Output(Out::y, dtype, {rows, 1, width});
    const TensorView rstd = ctx.Output(Out::rstd, DType::kFloat32, {rows, 1, 1});
    const TensorView x = OutputOrRoom(ctx, Out::x, dtype, {rows, 1, width});
    DispatchFloats(kOp, dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [this, given, group, residual, gamma, y, rstd, x, rows, width] {
        combine_.Run(given, group, x.data);
        AddRmsNorm(rows, width, epsilon_, x.as<const T>(), residual.as<const T>(), gamma.as<const T>(), x.as<T>(),
                   y.as<T>(), rstd.as<float>());
      });
    });
  }

 private:
  Combine combine_;
  double epsilon_;
};

NPU_RANK_KERNEL(NPUMoeDistributeCombineAddRmsNorm, CombineAddRmsNormKernel, kOp, "group_ep");

}  // namespace
}  // namespace npu
