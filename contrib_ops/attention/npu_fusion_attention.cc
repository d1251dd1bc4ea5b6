// npu_fusion_attention: attention for training. The semantics are in npu_fusion_attention.py; arguments are checked in
// ep/kernels/attention/training/training.cc.
#include "contrib_ops/attention/npu_fusion_attention.h"

#include <utility>

#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/attention/training/training.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUFusionAttention::In;
using Out = nodes::NPUFusionAttention::Out;

using attention::Dropout;
using attention::TrainingProblem;

constexpr const char* kOp = "npu_fusion_attention";

class FusionAttentionKernel final : public Kernel {
 public:
  explicit FusionAttentionKernel(const KernelInfo& info)
      : training_(kOp, "scale", info.attributes),
        seed_(static_cast<uint64_t>(info.attributes.Int("seed"))),
        offset_(static_cast<uint64_t>(info.attributes.Int("offset"))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(In::query);
    TrainingProblem made =
        training_.MakeProblem({query, ctx.Input(In::key), ctx.Input(In::value), ctx.Input(In::pse),
                               ctx.Input(In::padding_mask), ctx.Input(In::atten_mask), ctx.Input(In::prefix),
                               ctx.Input(In::actual_seq_qlen), ctx.Input(In::actual_seq_kvlen), ctx.Input(In::sink)});
    attention::Problem& problem = made.problem;
    problem.dropout = MakeDropout(ctx, made.weights);
    const TensorView output = ctx.Output(Out::attention_out, query.dtype, made.output_shape);
    problem.row_max = ctx.Output(Out::softmax_max, DType::kFloat32, made.statistics_shape).as<float>();
    problem.row_sum = ctx.Output(Out::softmax_sum, DType::kFloat32, made.statistics_shape).as<float>();
    ctx.Output(Out::softmax_out, query.dtype, Shape{0});
    problem.output = training_.OutputRows(output);
    if (!output || output.elements() == 0) problem.sequences.clear();
    attention::LaunchWork(ctx, kOp, attention::Attention(std::move(problem)));
  }

 private:
  Dropout MakeDropout(OpContext& ctx, int64_t weights) const {
    const TensorView bits = ctx.Input(In::dropout_mask);
    if (!bits && training_.keep_prob() == 1.0) return {};
    if (!bits && seed_ == 0) return {training_.keep_prob(), DrawSeed(ctx.stream()), offset_};
    if (!bits) return {training_.keep_prob(), DrawnPosition({seed_, offset_})};
    NPU_OP_CHECK(kOp, bits.dtype == DType::kUInt8 && bits.elements() >= (weights + 7) / 8,
                 "expected dropout_mask uint8 with a bit for each of ", weights, " weights, got ", NameOf(bits.dtype),
                 " ", bits.shape);
    return {training_.keep_prob(), bits.as<const uint8_t>()};
  }

  attention::Training training_;
  uint64_t seed_, offset_;
};

NPU_KERNEL(NPUFusionAttention, FusionAttentionKernel);

}  // namespace
}  // namespace npu
