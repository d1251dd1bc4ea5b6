// npu_fusion_attention_grad: the backward pass of npu_fusion_attention. The semantics are in npu_fusion_attention.py.
#include "contrib_ops/attention/npu_fusion_attention_grad.h"

#include <utility>

#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/attention/training/gradient.h"
#include "ep/kernels/attention/training/training.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUFusionAttentionGrad::In;
using Out = nodes::NPUFusionAttentionGrad::Out;

using attention::GradientProblem;
using attention::TrainingProblem;

constexpr const char* kOp = "npu_fusion_attention_grad";
class FusionAttentionGradKernel final : public Kernel {
 public:
  explicit FusionAttentionGradKernel(const KernelInfo& info)
      : training_(kOp, "scale_value", info.attributes),
        seed_(static_cast<uint64_t>(info.attributes.Int("seed"))),
        offset_(static_cast<uint64_t>(info.attributes.Int("offset"))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(In::query), key = ctx.Input(In::key), value = ctx.Input(In::value);
    const TensorView pse = ctx.Input(In::pse), sink = ctx.Input(In::sink);
    TrainingProblem made = training_.MakeProblem(
        {query, key, value, pse, ctx.Input(In::padding_mask), ctx.Input(In::atten_mask), ctx.Input(In::prefix),
         ctx.Input(In::actual_seq_qlen), ctx.Input(In::actual_seq_kvlen), sink});
    const TensorView dy = Like("dy", ctx.Input(In::dy), query.dtype, made.output_shape);
    const TensorView output = Like("attention_in", ctx.Input(In::attention_in), query.dtype, made.output_shape);
    const TensorView max = Like("softmax_max", ctx.Input(In::softmax_max), DType::kFloat32, made.statistics_shape);
    const TensorView sum = Like("softmax_sum", ctx.Input(In::softmax_sum), DType::kFloat32, made.statistics_shape);
    const double keep_prob = training_.keep_prob();
    NPU_OP_CHECK(kOp, keep_prob == 0.0 || keep_prob == 1.0 || seed_ != 0,
                 "expected the seed that the forward call returned with keep_prob < 1, got 0");

    GradientProblem g;
    g.forward = std::move(made.problem);
    g.forward.dropout = {keep_prob, DrawnPosition({seed_, offset_})};
    g.forward.output = training_.OutputRows(output);
    g.forward.row_max = max.as<float>();
    g.forward.row_sum = sum.as<float>();
    g.output_gradient = training_.OutputRows(dy);
    const TensorView dq = ctx.Output(Out::dq, query.dtype, query.shape);
    const TensorView dk = ctx.Output(Out::dk, key.dtype, key.shape);
    const TensorView dv = ctx.Output(Out::dv, value.dtype, value.shape);
    const TensorView dpse = ctx.Output(Out::dpse, query.dtype, pse ? pse.shape : Shape{0});
    const TensorView dsink = ctx.Output(Out::dsink, DType::kFloat32, sink ? sink.shape : Shape{0});
    NPU_OP_CHECK(kOp, dq && dk && dv, "expected dq, dk and dv to be asked for together");
    g.query = {dq.data, g.forward.query.head_stride, g.forward.query.row_stride};
    g.key = {dk.data, g.forward.key.head_stride, g.forward.key.row_stride};
    g.value = {dv.data, g.forward.value.head_stride, g.forward.value.row_stride};
    g.key_elements = dk.elements();
    g.value_elements = dv.elements();
    if (pse && dpse) {
      g.bias = dpse.data;
      g.bias_elements = dpse.elements();
    }
    if (sink && dsink) g.sink = dsink.as<float>();
    attention::LaunchWork(ctx, kOp, attention::Gradient(std::move(g)));
  }

 private:
  static TensorView Like(const char* name, const TensorView& t, DType dtype, const Shape& shape) {
    NPU_OP_CHECK(kOp, t && t.dtype == dtype && t.shape == shape, "expected ", name, " ", NameOf(dtype), " of shape ",
                 shape, ", got ", t ? NameOf(t.dtype) : "none", t ? " " + t.shape.ToString() : "");
    return t;
  }

  attention::Training training_;
  uint64_t seed_, offset_;
};

NPU_KERNEL(NPUFusionAttentionGrad, FusionAttentionGradKernel);

}  // namespace
}  // namespace npu
