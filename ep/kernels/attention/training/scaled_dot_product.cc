// torch's scaled_dot_product_attention and its gradient, as torch's bridge calls them: softmax(scale * Q K^T + bias) V
// with a log-sum-exp per row, from which the backward pass recomputes the weights. These operators have a domain of
// their own: no model contains them.
#include <utility>

#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/attention/core/layout.h"
#include "ep/kernels/attention/training/gradient.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using attention::Axes;
using attention::kMaxHeadSize;
using attention::LaunchWork;
using attention::Problem;
using attention::Rows;
using attention::Sequence;

struct Operands {
  TensorView query, key, value;  // [B, N, Sq, D], [B, Nkv, Skv, D], [B, Nkv, Skv, Dv]
  TensorView bias;               // [1 or B, 1 or N, 1 or Sq, Skv]
  TensorView seed;               // of the dropout, in host memory
};

Axes AxesOf(const TensorView& t) { return attention::AxesOf(t.shape, attention::Form::kBNSD, 0); }
Rows RowsOf(const TensorView& t) {
  const Axes axes = AxesOf(t);
  return {t.data, axes.head_stride, axes.row_stride};
}

class ScaledDotProductKernel : public Kernel {
 protected:
  ScaledDotProductKernel(const char* op, const Attributes& attributes)
      : op_(op),
        causal_(attributes.Bool("causal")),
        scale_(static_cast<float>(attributes.Float("scale"))),
        keep_prob_(attributes.Float("keep_prob")) {
    NPU_OP_CHECK(op_, keep_prob_ >= 0.0 && keep_prob_ <= 1.0, "expected keep_prob in [0, 1], got ", keep_prob_);
  }

  // Sets everything but output and log-sum-exp.
  Problem MakeProblem(const Operands& in) const {
    CheckOperands(in);
    const Axes q = AxesOf(in.query), k = AxesOf(in.key), v = AxesOf(in.value);
    const int64_t weights = Shape{q.heads, q.rows, k.rows}.Elements();  // of one batch entry
    Shape{q.batch, weights}.Elements();                                 // throws if weight indices would overflow
    Problem p;
    p.op = op_;
    p.query_dtype = p.output_dtype = p.key.dtype = p.value.dtype = in.query.dtype;
    p.heads = q.heads;
    p.key_heads = k.heads;
    p.head_size = q.size;
    p.value_size = v.size;
    p.scale = scale_;
    p.query = RowsOf(in.query);
    static_cast<Rows&>(p.key) = RowsOf(in.key);
    static_cast<Rows&>(p.value) = RowsOf(in.value);
    p.lse_head_stride = q.rows;
    p.lse_row_stride = 1;
    if (keep_prob_ < 1.0) p.dropout = {keep_prob_, static_cast<uint64_t>(ReadHostInt(op_, "seed", in.seed)), 0};
    const int64_t bias_batch_stride = SetBias(in.bias, q, k, p);
    for (int64_t b = 0; b < q.batch; ++b) {
      Sequence s;
      s.query_rows = s.query_len = q.rows;
      s.key_len = k.rows;
      s.left = -attention::kUnbounded;
      s.right = causal_ ? 0 : attention::kUnbounded;
      s.query = b * q.batch_stride;
      s.key = b * k.batch_stride;
      s.value = b * v.batch_stride;
      s.output = b * q.heads * q.rows * v.size;
      s.lse = b * q.heads * q.rows;
      s.bias = b * bias_batch_stride;
      s.dropout = b * weights;
      p.sequences.push_back(s);
    }
    return p;
  }

  static Shape OutputShape(const Operands& in) {
    const Axes q = AxesOf(in.query);
    return {q.batch, q.heads, q.rows, in.value.shape[3]};
  }
  static Shape LogSumExpShape(const Operands& in) {
    const Axes q = AxesOf(in.query);
    return {q.batch, q.heads, q.rows};
  }

  const char* op_;

 private:
  void CheckOperands(const Operands& in) const {
    NPU_OP_CHECK(op_, in.query && in.key && in.value, "expected the tensors query, key and value");
    const Shape &q = in.query.shape, &k = in.key.shape, &v = in.value.shape;
    const bool fits = q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && k[0] == q[0] && v[0] == q[0] && k[1] == v[1] &&
                      k[2] == v[2] && k[3] == q[3];
    NPU_OP_CHECK(op_, fits, "expected query [B, N, Sq, D], key [B, Nkv, Skv, D] and value [B, Nkv, Skv, Dv], got ", q,
                 ", ", k, " and ", v);
    NPU_OP_CHECK(op_, k[1] >= 1 && q[1] % k[1] == 0, "expected the heads of key to divide those of query, got ", k[1],
                 " and ", q[1]);
    NPU_OP_CHECK(op_, k[2] < INT32_MAX, "expected a key sequence shorter than 2^31 - 1, got ", k[2]);
    for (const int64_t size : {q[3], v[3]}) {
      NPU_OP_CHECK(op_, size >= 1 && size <= kMaxHeadSize, "expected a head size from 1 to ", kMaxHeadSize, ", got ",
                   size);
    }
    NPU_OP_CHECK(op_, in.key.dtype == in.query.dtype && in.value.dtype == in.query.dtype,
                 "expected query, key and value of one dtype, got ", NameOf(in.query.dtype), ", ", NameOf(in.key.dtype),
                 " and ", NameOf(in.value.dtype));
  }

  // Returns the stride between the biases of two batch entries.
  int64_t SetBias(const TensorView& bias, const Axes& q, const Axes& k, Problem& p) const {
    if (!bias) return 0;
    const Shape& shape = bias.shape;
    const auto is = [](int64_t size, int64_t wanted) { return size == 1 || size == wanted; };
    NPU_OP_CHECK(op_,
                 shape.rank() == 4 && is(shape[0], q.batch) && is(shape[1], q.heads) && is(shape[2], q.rows) &&
                     shape[3] == k.rows,
                 "expected bias of shape [1 or ", q.batch, ", 1 or ", q.heads, ", 1 or ", q.rows, ", ", k.rows,
                 "], got ", shape);
    const auto stride = [&](int axis) { return shape[axis] == 1 ? 0 : shape.Elements(axis + 1, 4); };
    p.bias = {bias.data, stride(1), stride(2)};
    p.bias_dtype = bias.dtype;
    return stride(0);
  }

  bool causal_;
  float scale_;
  double keep_prob_;
};

class ForwardKernel final : public ScaledDotProductKernel {
 public:
  explicit ForwardKernel(const KernelInfo& info)
      : ScaledDotProductKernel("scaled_dot_product_attention", info.attributes) {}

  void Compute(OpContext& ctx) const override {
    const Operands in{ctx.Input(0), ctx.Input(1), ctx.Input(2), ctx.Input(3), ctx.Input(4)};
    Problem p = MakeProblem(in);
    const TensorView output = ctx.Output(0, in.query.dtype, OutputShape(in));
    p.lse = ctx.Output(1, DType::kFloat32, LogSumExpShape(in)).as<float>();
    if (!output || output.elements() == 0) return;
    p.output = RowsOf(output);
    LaunchWork(ctx, op_, attention::Attention(std::move(p)));
  }
};

class GradientKernel final : public ScaledDotProductKernel {
 public:
  explicit GradientKernel(const KernelInfo& info)
      : ScaledDotProductKernel("scaled_dot_product_attention_grad", info.attributes) {}

  void Compute(OpContext& ctx) const override {
    const Operands in{ctx.Input(0), ctx.Input(1), ctx.Input(2), ctx.Input(3), ctx.Input(4)};
    attention::GradientProblem g;
    g.forward = MakeProblem(in);
    g.forward.output = RowsOf(Like("output", ctx.Input(5), in.query.dtype, OutputShape(in)));
    g.forward.lse = Like("logsumexp", ctx.Input(6), DType::kFloat32, LogSumExpShape(in)).as<float>();
    g.output_gradient = RowsOf(Like("the output's gradient", ctx.Input(7), in.query.dtype, OutputShape(in)));
    const TensorView query = ctx.Output(0, in.query.dtype, in.query.shape);
    const TensorView key = ctx.Output(1, in.key.dtype, in.key.shape);
    const TensorView value = ctx.Output(2, in.value.dtype, in.value.shape);
    NPU_OP_CHECK(op_, query && key && value, "expected the three gradients to be asked for together");
    g.query = RowsOf(query);
    g.key = RowsOf(key);
    g.value = RowsOf(value);
    g.key_elements = key.elements();
    g.value_elements = value.elements();
    LaunchWork(ctx, op_, attention::Gradient(std::move(g)));
  }

 private:
  TensorView Like(const char* name, const TensorView& t, DType dtype, const Shape& shape) const {
    NPU_OP_CHECK(op_, t && t.dtype == dtype && t.shape == shape, "expected ", name, " ", NameOf(dtype), " of shape ",
                 shape, ", got ", t ? NameOf(t.dtype) : "none", t ? " " + t.shape.ToString() : "");
    return t;
  }
};

OpDef AttentionDef(OpDef def) {
  def.domain = "npu.aten";
  def.inputs.insert(def.inputs.begin(), {Input("query", kFloats), Input("key", kFloats), Input("value", kFloats),
                                         OptionalInput("bias", kFloats), OptionalHostInput("seed", {DType::kInt64})});
  def.attributes = {IntAttribute("causal", 0), FloatAttribute("scale", 1.0), FloatAttribute("keep_prob", 1.0)};
  return def;
}

NPU_ONNX_KERNEL(AttentionDef({
    .type = "ScaledDotProductAttention",
    .outputs = {Output("output", kFloats), Output("logsumexp", {DType::kFloat32})},
    .make = MakeKernel<ForwardKernel>,
}));
NPU_ONNX_KERNEL(AttentionDef({
    .type = "ScaledDotProductAttentionGrad",
    .inputs = {Input("output", kFloats), Input("logsumexp", {DType::kFloat32}), Input("output_gradient", kFloats)},
    .outputs = {Output("query_gradient", kFloats), Output("key_gradient", kFloats), Output("value_gradient", kFloats)},
    .make = MakeKernel<GradientKernel>,
}));

}  // namespace
}  // namespace npu
