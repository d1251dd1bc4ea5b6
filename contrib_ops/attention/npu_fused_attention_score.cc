// npu_fused_attention_score: attention with an additive mask and merged heads. The semantics are in
// npu_fused_attention_score.py.
#include "contrib_ops/attention/npu_fused_attention_score.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUFusedAttentionScore::In;
using Out = nodes::NPUFusedAttentionScore::Out;

using attention::Problem;
using attention::Sequence;

constexpr const char* kOp = "npu_fused_attention_score";
// The engine reads rows of heads: planes [D, S] are transposed to [S, D] first.
struct TransposedPlanes {
  const void* from = nullptr;  // null: nothing to do
  void* to = nullptr;
  int64_t planes = 0, rows = 0, columns = 0;  // of the result
  size_t element_size = 0;
};

template <class T>
void TransposePlanes(const TransposedPlanes& t) {
  ParallelFor(t.planes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* from = static_cast<const T*>(t.from) + plane * t.rows * t.columns;
      T* to = static_cast<T*>(t.to) + plane * t.rows * t.columns;
      for (int64_t row = 0; row < t.rows; ++row) {
        for (int64_t column = 0; column < t.columns; ++column) {
          to[row * t.columns + column] = from[column * t.rows + row];
        }
      }
    }
  });
}

void Transpose(const TransposedPlanes& t) {
  if (t.from == nullptr) return;
  t.element_size == 4 ? TransposePlanes<uint32_t>(t) : TransposePlanes<uint16_t>(t);
}

class FusedAttentionScoreKernel final : public Kernel {
 public:
  explicit FusedAttentionScoreKernel(const KernelInfo& info) {
    const Attributes& a = info.attributes;
    scale_ = static_cast<float>(a.Float("scale"));
    keep_prob_ = static_cast<float>(a.Float("keep_prob"));
    transposed_[0] = a.Bool("query_transpose");
    transposed_[1] = a.Bool("key_transpose");
    transposed_[2] = a.Bool("value_transpose") != a.Bool("bmm_score_transpose_b");
    seed_ = static_cast<uint64_t>(a.Int("seed"));
    NPU_OP_CHECK(kOp, keep_prob_ >= 0.0 && keep_prob_ <= 1.0, "expected keep_prob in [0, 1], got ", keep_prob_);
    NPU_OP_CHECK(kOp, !a.Bool("bmm_score_transpose_a"), "expected bmm_score_transpose_a False, got True");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(In::query_layer), key = ctx.Input(In::key_layer),
                     value = ctx.Input(In::value_layer), mask = ctx.Input(In::attention_mask);
    NPU_OP_CHECK(kOp, query && key && value && mask,
                 "expected the tensors query_layer, key_layer, value_layer and "
                 "attention_mask");
    NPU_OP_CHECK(kOp, key.dtype == query.dtype && value.dtype == query.dtype && mask.dtype == query.dtype,
                 "expected tensors of one dtype, got ", NameOf(query.dtype), ", ", NameOf(key.dtype), ", ",
                 NameOf(value.dtype), " and ", NameOf(mask.dtype));
    const Shape q = Planes("query_layer", query, 0), k = Planes("key_layer", key, 1),
                v = Planes("value_layer", value, 2);
    const int64_t batch = q[0], heads = q[1], rows = q[2], keys = k[2];
    NPU_OP_CHECK(kOp, heads >= 1, "expected at least one head, got 0");
    NPU_OP_CHECK(kOp, k[0] == batch && k[1] == heads && k[3] == q[3], "expected key_layer of shape [", batch, ", ",
                 heads, ", Skv, ", q[3], "], got ", k);
    NPU_OP_CHECK(kOp, v[0] == batch && v[1] == heads && v[2] == keys, "expected value_layer of shape [", batch, ", ",
                 heads, ", ", keys, ", D], got ", v);
    NPU_OP_CHECK(kOp, keys < INT32_MAX, "expected a key sequence shorter than 2^31 - 1, got ", keys);
    const Shape& m = mask.shape;
    NPU_OP_CHECK(kOp,
                 m.rank() == 4 && (m[0] == 1 || m[0] == batch) && (m[1] == 1 || m[1] == heads) &&
                     (m[2] == 1 || m[2] == rows) && m[3] == keys,
                 "expected attention_mask of shape [1 or ", batch, ", 1 or ", heads, ", 1 or ", rows, ", ", keys,
                 "], got ", m);

    const TensorView output =
        ctx.Output(Out::out, query.dtype, {Shape{batch, rows}.Elements(), Shape{heads, v[3]}.Elements()});
    Problem p;
    p.op = kOp;
    p.query_dtype = p.output_dtype = p.bias_dtype = p.key.dtype = p.value.dtype = query.dtype;
    p.heads = p.key_heads = heads;
    p.head_size = q[3];
    p.value_size = v[3];
    p.scale = scale_;
    std::array<TransposedPlanes, 3> transposed;
    p.query = {InRows(ctx, query, q, 0, transposed[0]), rows * q[3], q[3]};
    static_cast<attention::Rows&>(p.key) = {InRows(ctx, key, k, 1, transposed[1]), keys * k[3], k[3]};
    static_cast<attention::Rows&>(p.value) = {InRows(ctx, value, v, 2, transposed[2]), keys * v[3], v[3]};
    p.output = {output.data, v[3], heads * v[3]};
    p.bias = {mask.data, m[1] == 1 ? 0 : m.Elements(2, 4), m[2] == 1 ? 0 : m[3]};
    if (keep_prob_ < 1.0) p.dropout = {keep_prob_, seed_ != 0 ? seed_ : DrawSeed(ctx.stream()), 0};
    for (int64_t b = 0; b < batch && output.elements() > 0; ++b) {
      Sequence s;
      s.query_rows = s.query_len = rows;
      s.key_len = keys;
      s.left = -attention::kUnbounded;
      s.right = attention::kUnbounded;
      s.query = b * heads * rows * q[3];
      s.key = b * heads * keys * k[3];
      s.value = b * heads * keys * v[3];
      s.output = b * rows * heads * v[3];
      s.bias = m[0] == 1 ? 0 : b * m.Elements(1, 4);
      s.dropout = b * Shape{batch, heads, rows, keys}.Elements(1, 4);
      p.sequences.push_back(s);
    }
    attention::LaunchWork(ctx, kOp, attention::Attention(std::move(p)), [transposed] {
      for (const TransposedPlanes& t : transposed) Transpose(t);
    });
  }

 private:
  // The operand's shape [B, N, S, D], after its transposition if it has one.
  Shape Planes(const char* name, const TensorView& t, size_t operand) const {
    constexpr int64_t kMaxHeadSize = 768;
    NPU_OP_CHECK(kOp, t.shape.rank() == 4, "expected ", name, " of shape [B, N, S, D], got ", t.shape);
    Shape shape = t.shape;
    if (transposed_[operand]) std::swap(shape[2], shape[3]);
    NPU_OP_CHECK(kOp, shape[3] >= 1 && shape[3] <= kMaxHeadSize, "expected a head size from 1 to ", kMaxHeadSize,
                 " in ", name, ", got ", shape[3]);
    return shape;
  }

  void* InRows(OpContext& ctx, const TensorView& t, const Shape& shape, size_t operand,
               TransposedPlanes& transposed) const {
    if (!transposed_[operand] || t.elements() == 0) return t.data;
    transposed = {t.data, ctx.Workspace(t.bytes()), shape.Elements(0, 2), shape[2], shape[3], BitsOf(t.dtype) / 8u};
    return transposed.to;
  }

  float scale_ = 1.0f;
  double keep_prob_ = 1.0;
  uint64_t seed_ = 0;
  std::array<bool, 3> transposed_{};
};

NPU_KERNEL(NPUFusedAttentionScore, FusedAttentionScoreKernel);

}  // namespace
}  // namespace npu
