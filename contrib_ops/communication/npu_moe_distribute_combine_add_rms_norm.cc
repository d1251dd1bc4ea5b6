// npu_moe_distribute_combine_add_rms_norm(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, residual_x,
// gamma, …; group_ep, ep_world_size, ep_rank_id, moe_expert_num, …, norm_eps) -> y, rstd, x. The semantics are in
// npu_moe_distribute_combine_add_rms_norm.py.
#include "contrib_ops/communication/npu_moe_distribute_combine_add_rms_norm.h"

#include "ep/kernels/communication/combine.h"
#include "ep/kernels/communication/unused.h"
#include "ep/kernels/normalization/add_row.h"
#include "ep/kernels/normalization/rms_norm.h"
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
    const std::shared_ptr<Communicator> group = combine_.experts().Find();
    CombineInputs given;
    const TensorView residual = ctx.Input(In::residual_x), gamma = ctx.Input(In::gamma);
    CheckForAll(ctx, kOp, group, [&] {
      combine_.experts().CheckRank(kOp, group);
      CheckNoTensor(kOp, ctx, In::activation_scale, "activation_scale");
      CheckNoTensor(kOp, ctx, In::weight_scale, "weight_scale");
      CheckNoTensor(kOp, ctx, In::group_list, "group_list");
      CheckNoTensor(kOp, ctx, In::elastic_info, "elastic_info");
      given = {ctx.Input(In::expand_x),
               ctx.Input(In::expert_ids),
               ctx.Input(In::expand_idx),
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
      CheckLike("residual_x", residual, given.rows.dtype, {given.tokens(), 1, given.width()});
      CheckLike("gamma", gamma, given.rows.dtype, {given.width()});
    });
    const DType dtype = given.rows.dtype;
    const int64_t rows = given.tokens(), width = given.width();
    const TensorView y = ctx.Output(Out::y, dtype, {rows, 1, width});
    const TensorView rstd = ctx.Output(Out::rstd, DType::kFloat32, {rows, 1, 1});
    const TensorView x = OutputOrRoom(ctx, Out::x, dtype, {rows, 1, width});
    DispatchFloats(kOp, dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [this, given, group, residual, gamma, y, rstd, x, rows, width, call = combine_.CallOf(given)] {
        combine_.Run(given, call, group, x.data);
        ParallelFor(rows, RowGrain(width), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            T* const sums = x.as<T>() + row * width;
            AddRow(sums, residual.as<const T>() + row * width, sums, width);
            const float r = ReciprocalRms(sums, epsilon_, width);
            if (y) ScaleRow(sums, r, gamma.as<const T>(), y.as<T>() + row * width, width);
            if (rstd) rstd.as<float>()[row] = r;
          }
        });
      });
    });
  }

 private:
  static void CheckLike(const char* name, const TensorView& tensor, DType dtype, const Shape& shape) {
    NPU_CHECK(tensor.shape == shape && tensor.dtype == dtype, "[", kOp, "] expected ", name, " ", NameOf(dtype), " ",
              shape, ", got ", NameOf(tensor.dtype), " ", tensor.shape);
  }

  Combine combine_;
  double epsilon_;
};

NPU_KERNEL(NPUMoeDistributeCombineAddRmsNorm, CombineAddRmsNormKernel);

}  // namespace
}  // namespace npu
