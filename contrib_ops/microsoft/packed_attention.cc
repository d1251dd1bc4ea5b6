// PackedAttention and PackedMultiHeadAttention: Attention and MultiHeadAttention of sequences whose padding was
// removed. Each sequence attends to itself.
#include <string>
#include <utility>

#include "contrib_ops/microsoft/head_attention.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/projected_attention.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr DTypeSet kTypes{DType::kFloat32, DType::kFloat16}, kInt32{DType::kInt32};

class PackedAttentionKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "PackedAttention";

  explicit PackedAttentionKernel(const KernelInfo& info) : heads_(kOp, info), projection_(info) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == 1 && projection_.Pack(kOp, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() == 2, "expected an input [tokens, hidden], got shape ", x.shape);
    RaggedRows ragged = ReadRaggedRows(kOp, ctx.Input(4), ctx.Input(3).shape, x.shape[0]);
    const TensorView projected = projection_.Launch(ctx, heads_, 2, x, ctx.Input(1), ctx.Input(2));
    heads_.Attend(ctx, projected, {.bias = ctx.Input(5), .ragged = std::move(ragged)});
  }

 private:
  ProjectedHeads heads_;
  Projection projection_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = PackedAttentionKernel::kOp,
    .inputs = {Input("input", kTypes), Input("weights", kTypes), Input("bias", kTypes), Input("token_offset", kInt32),
               HostInput("cumulative_sequence_length", kInt32), OptionalInput("attention_bias", kTypes)},
    .outputs = {Output("output", kTypes)},
    .attributes = {RequiredInt("num_heads"), IntsAttribute("qkv_hidden_sizes"), FloatAttribute("scale", 0.0)},
    .make = MakeKernel<PackedAttentionKernel>,
}));

class PackedMultiHeadAttentionKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "PackedMultiHeadAttention";

  explicit PackedMultiHeadAttentionKernel(const KernelInfo& info)
      : float32_products_(info.float32_products),
        heads_(info.attributes.Int("num_heads")),
        scale_(info.attributes.Float("scale")) {
    NPU_OP_CHECK(kOp, heads_ > 0 && heads_ <= INT32_MAX, "expected num_heads of 1 or more, got ", heads_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(0), key = ctx.Input(1), value = ctx.Input(2), bias = ctx.Input(3);
    HeadAttention a{
        .op = kOp, .dtype = query.dtype, .float32_products = float32_products_, .scale = scale_, .bias = ctx.Input(6)};
    for (const TensorView& view : {key, value, bias, a.bias})
      NPU_OP_CHECK(kOp, !view || view.dtype == query.dtype, "expected inputs of query's type ", NameOf(query.dtype),
                   ", got ", NameOf(view.dtype));
    if (key) {
      SetRows(query, key, value, a);
    } else {
      SetPackedRows(query, value, a);
    }
    const int64_t columns = heads_ * a.query.axes.size;
    const Shape wanted{2 * columns + heads_ * a.value.axes.size};
    NPU_OP_CHECK(kOp, !bias || bias.shape == wanted, "expected bias of shape ", wanted, ", got ", bias.shape);
    if (bias) {
      a.query.bias = bias.data;
      a.key.bias = bias.as<const char>() + BytesFor(bias.dtype, columns);
      a.value.bias = bias.as<const char>() + BytesFor(bias.dtype, 2 * columns);
    }
    a.ragged = ReadRaggedRows(kOp, ctx.Input(5), ctx.Input(4).shape, query.shape[0]);
    a.capacity = query.shape[0];
    a.Launch(ctx);
  }

 private:
  void SetRows(const TensorView& query, const TensorView& key, const TensorView& value, HeadAttention& a) const {
    const Shape& v = value.shape;
    NPU_OP_CHECK(kOp, query.shape.rank() == 2 && key.shape == query.shape && v.rank() == 2 && v[0] == query.shape[0],
                 "expected query and key [tokens, hidden] of one shape and value [tokens, hidden], got ", query.shape,
                 ", ", key.shape, " and ", v);
    const int64_t size = HeadSize(kOp, "query", query.shape[1], heads_);
    a.query = HeadRows::Columns(query, heads_, size, 0);
    a.key = HeadRows::Columns(key, heads_, size, 0);
    a.value = HeadRows::Columns(value, heads_, HeadSize(kOp, "value", v[1], heads_), 0);
  }
  // [tokens, N, 3, D]
  void SetPackedRows(const TensorView& query, const TensorView& value, HeadAttention& a) const {
    const Shape& q = query.shape;
    NPU_OP_CHECK(kOp, !value && q.rank() == 4 && q[1] == heads_ && q[2] == 3,
                 "expected key and value, or a query [tokens, ", heads_, ", 3, D] that holds them, got query ", q);
    const int64_t size = HeadSize(kOp, "query", heads_ * q[3], heads_);
    HeadRows* rows[] = {&a.query, &a.key, &a.value};
    for (int part = 0; part < 3; ++part) {
      const char* data = query.as<const char>();
      if (data != nullptr) data += BytesFor(query.dtype, part * size);
      *rows[part] = {data, {1, heads_, q[0], size, 0, 3 * size, 3 * heads_ * size}};
    }
  }

  DType float32_products_;
  int64_t heads_;
  double scale_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = PackedMultiHeadAttentionKernel::kOp,
    .inputs = {Input("query", kTypes), OptionalInput("key", kTypes), OptionalInput("value", kTypes),
               OptionalInput("bias", kTypes), Input("token_offset", kInt32),
               HostInput("cumulative_sequence_length", kInt32), OptionalInput("attention_bias", kTypes)},
    .outputs = {Output("output", kTypes)},
    .attributes = {RequiredInt("num_heads"), FloatAttribute("mask_filter_value", -10000.0),
                   FloatAttribute("scale", 0.0)},
    .make = MakeKernel<PackedMultiHeadAttentionKernel>,
}));

}  // namespace
}  // namespace npu
