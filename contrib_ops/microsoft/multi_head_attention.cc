// MultiHeadAttention: queries, keys and values in tensors of their own, or packed, with a bias each. And
// DecoderMaskedMultiHeadAttention, the same of one row, with a cache that is updated in place.
#include <memory>
#include <string>

#include "contrib_ops/microsoft/head_attention.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using attention::Form;

// Where an operator has its inputs. Query, key and value are the first three.
struct Inputs {
  const char* op;
  const char* mask_name;
  size_t bias, padding, score_bias, past_key, past_value, past_length, indirection;
  bool one_row;
};
enum In { kQuery, kKey, kValue };
constexpr Inputs kAnyRows{"MultiHeadAttention", "key_padding_mask", 3, 4, 5, 6, 7, 8, 9, false};
constexpr Inputs kOneRow{"DecoderMaskedMultiHeadAttention", "mask_index", 10, 3, 4, 5, 6, 7, 9, true};

// Part `part` of `parts` in a tensor [B, S, N, parts, D].
HeadRows Packed(const TensorView& t, int64_t parts, int64_t part) {
  const Shape& s = t.shape;
  const int64_t size = s[4], pitch = s[2] * parts * size;
  const void* data = t.data == nullptr ? nullptr : t.as<const char>() + BytesFor(t.dtype, part * size);
  return {data, {s[0], s[2], s[1], size, s[1] * pitch, parts * size, pitch}};
}

class MultiHeadAttentionKernel final : public Kernel {
 public:
  MultiHeadAttentionKernel(const Inputs& in, const KernelInfo& info)
      : in_(in),
        float32_products_(info.float32_products),
        heads_(info.attributes.Int("num_heads")),
        scale_(info.attributes.Float("scale")),
        hidden_(static_cast<float>(info.attributes.Float("mask_filter_value"))),
        causal_(info.attributes.Bool("unidirectional", false)) {
    NPU_OP_CHECK(in_.op, heads_ > 0 && heads_ <= INT32_MAX, "expected num_heads of 1 or more, got ", heads_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(kQuery);
    NPU_OP_CHECK(in_.op, !in_.one_row || (query.shape.rank() == 3 && query.shape[1] == 1 && ctx.Input(kKey)),
                 "expected query [batch, 1, hidden] and a key, got shape ", query.shape);
    for (size_t i : {size_t{kKey}, size_t{kValue}, in_.bias, in_.score_bias, in_.past_key, in_.past_value})
      NPU_OP_CHECK(in_.op, !ctx.Input(i) || ctx.Input(i).dtype == query.dtype, "expected inputs of query's type ",
                   NameOf(query.dtype), ", got ", NameOf(ctx.Input(i).dtype));
    HeadAttention a{.op = in_.op,
                    .dtype = query.dtype,
                    .float32_products = float32_products_,
                    .scale = scale_,
                    .mask_name = in_.mask_name,
                    .mask = ctx.Input(in_.padding),
                    .bias = ctx.Input(in_.score_bias),
                    .hidden = hidden_};
    SetRows(query, ctx.Input(kKey), ctx.Input(kValue), a);
    a.causal = causal_;
    if (ctx.Input(in_.bias)) SetBias(ctx.Input(in_.bias), ctx.Input(kKey), a);
    SetCache(ctx, a);
    a.Launch(ctx);
  }

 private:
  void SetRows(const TensorView& query, const TensorView& key, const TensorView& value, HeadAttention& a) const {
    const Shape& q = query.shape;
    if (!key) {
      NPU_OP_CHECK(in_.op, !value && q.rank() == 5 && q[2] == heads_ && q[3] == 3,
                   "expected key and value, or a query [B, S, ", heads_, ", 3, D] that holds them, got query ", q);
      HeadSize(in_.op, "query", heads_ * q[4], heads_);
      a.query = Packed(query, 3, 0);
      a.key = Packed(query, 3, 1);
      a.value = Packed(query, 3, 2);
      return;
    }
    NPU_OP_CHECK(in_.op, q.rank() == 3, "expected query [B, S, hidden] beside a key, got shape ", q);
    const int64_t size = HeadSize(in_.op, "query", q[2], heads_);
    a.query = HeadRows::Columns(query, heads_, size, 0);
    const Shape& k = key.shape;
    NPU_OP_CHECK(in_.op, k.rank() >= 3 && k[0] == q[0], "expected key of query's batch ", q[0], ", got shape ", k);
    if (k.rank() == 5) {
      NPU_OP_CHECK(in_.op, !value && k[2] == heads_ && k[3] == 2 && k[4] == size, "expected a key with values [B, L, ",
                   heads_, ", 2, ", size, "] and no value, got key ", k);
      a.key = Packed(key, 2, 0);
      a.value = Packed(key, 2, 1);
      return;
    }
    const Shape& v = value.shape;
    NPU_OP_CHECK(in_.op, value && v.rank() == k.rank() && v[0] == q[0],
                 "expected key and value of the same rank and batch, got ", k, " and ", v);
    if (k.rank() == 3) {
      NPU_OP_CHECK(in_.op, k[2] == q[2] && v[1] == k[1], "expected key [B, L, ", q[2],
                   "] and value [B, L, hidden], got ", k, " and ", v);
      a.key = HeadRows::Columns(key, heads_, size, 0);
      a.value = HeadRows::Columns(value, heads_, HeadSize(in_.op, "value", v[2], heads_), 0);
      return;
    }
    NPU_OP_CHECK(in_.op, k.rank() == 4 && k[1] == heads_ && k[3] == size && v[1] == heads_ && v[2] == k[2],
                 "expected key [B, ", heads_, ", L, ", size, "] and value [B, ", heads_, ", L, D], got ", k, " and ",
                 v);
    HeadSize(in_.op, "value", heads_ * v[3], heads_);
    a.key = {key.data, attention::AxesOf(k, Form::kBNSD, 0)};
    a.value = {value.data, attention::AxesOf(v, Form::kBNSD, 0)};
  }

  // [D + D + Dv]. Keys and values of an earlier run, in heads, have theirs already.
  void SetBias(const TensorView& bias, const TensorView& key, HeadAttention& a) const {
    const int64_t columns = heads_ * a.query.axes.size, value_columns = heads_ * a.value.axes.size;
    const Shape wanted{2 * columns + value_columns};
    NPU_OP_CHECK(in_.op, bias.shape == wanted, "expected bias of shape ", wanted, ", got ", bias.shape);
    const auto* data = bias.as<const char>();
    a.query.bias = data;
    if (key && key.shape.rank() == 4) return;
    a.key.bias = data + BytesFor(bias.dtype, columns);
    a.value.bias = data + BytesFor(bias.dtype, 2 * columns);
  }

  void SetCache(OpContext& ctx, HeadAttention& a) const {
    const TensorView key = ctx.Input(in_.past_key), value = ctx.Input(in_.past_value),
                     length = ctx.Input(in_.past_length);
    NPU_OP_CHECK(in_.op, key.present == value.present, "expected both past_key and past_value, or none");
    const attention::Axes &k = a.key.axes, &v = a.value.axes;
    if (key) {
      const Shape& p = key.shape;
      NPU_OP_CHECK(in_.op,
                   p.rank() == 4 && p[0] == k.batch && p[1] == heads_ && p[3] == k.size &&
                       value.shape == (Shape{k.batch, heads_, p[2], v.size}),
                   "expected past_key [", k.batch, ", ", heads_, ", rows, ", k.size, "] and past_value [", k.batch,
                   ", ", heads_, ", rows, ", v.size, "], got ", p, " and ", value.shape);
      a.past_rows = a.past_capacity = p[2];
      if (length) a.past_rows = ReadPastLength(in_.op, length, k.rows, p[2]);
    }
    a.capacity = key && length ? a.past_capacity : a.past_rows + k.rows;
    a.keys = {key.data, ctx.Output(1, a.dtype, {k.batch, heads_, a.capacity, k.size}).data};
    a.values = {value.data, ctx.Output(2, a.dtype, {k.batch, heads_, a.capacity, v.size}).data};
  }

  Inputs in_;
  DType float32_products_;
  int64_t heads_;
  double scale_;
  float hidden_;
  bool causal_;
};

bool IsGiven(const NodeView& node, size_t input) {
  return input < node.inputs.size() && node.inputs[input] != DType::kUndefined;
}

std::string WhyUnsupported(const Inputs& in, const NodeView& node) {
  if (IsGiven(node, in.indirection)) return std::string(in.op) + " with cache_indirection is not implemented";
  if (node.output_used.size() > 3 && node.output_used[3])
    return std::string(in.op) + " that returns qk is not implemented";
  if (in.one_row && !IsGiven(node, kKey)) return std::string(in.op) + " of a packed query is not implemented";
  if (in.one_row && IsGiven(node, in.past_key) &&
      (node.attributes.Int("past_present_share_buffer") == 0 || !IsGiven(node, in.past_length)))
    return std::string(in.op) + " without a shared cache is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = kAnyRows.op,
    .inputs = {Input("query", kFloats), OptionalInput("key", kFloats), OptionalInput("value", kFloats),
               OptionalInput("bias", kFloats), OptionalInput("key_padding_mask", {DType::kInt32}),
               OptionalInput("attention_bias", kFloats), OptionalInput("past_key", kFloats),
               OptionalInput("past_value", kFloats), OptionalHostInput("past_sequence_length", {DType::kInt32}),
               OptionalInput("cache_indirection", {DType::kInt32})},
    .outputs = {Output("output", kFloats), OptionalOutput("present_key", kFloats),
                OptionalOutput("present_value", kFloats), OptionalOutput("qk", kFloats)},
    .attributes = {RequiredInt("num_heads"), FloatAttribute("mask_filter_value", -10000.0),
                   FloatAttribute("scale", 0.0), IntAttribute("unidirectional", 0)},
    .may_alias = {{6, 1}, {7, 2}},
    .make = [](const KernelInfo& info) { return std::make_unique<MultiHeadAttentionKernel>(kAnyRows, info); },
    .unsupported = [](const NodeView& node) { return WhyUnsupported(kAnyRows, node); },
}));

constexpr DTypeSet kStepTypes{DType::kFloat32, DType::kFloat16};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOneRow.op,
    .inputs = {Input("query", kStepTypes), OptionalInput("key", kStepTypes), OptionalInput("value", kStepTypes),
               OptionalInput("mask_index", {DType::kInt32}), OptionalInput("attention_bias", kStepTypes),
               OptionalInput("past_key", kStepTypes), OptionalInput("past_value", kStepTypes),
               OptionalHostInput("past_sequence_length", {DType::kInt32}),
               OptionalHostInput("beam_width", {DType::kInt32}), OptionalInput("cache_indirection", {DType::kInt32}),
               OptionalInput("bias", kStepTypes)},
    .outputs = {Output("output", kStepTypes), OptionalOutput("present_key", kStepTypes),
                OptionalOutput("present_value", kStepTypes), OptionalOutput("qk", kStepTypes)},
    .attributes = {RequiredInt("num_heads"), FloatAttribute("mask_filter_value", -10000.0),
                   FloatAttribute("scale", 0.0), IntAttribute("past_present_share_buffer", 0),
                   IntAttribute("output_qk", 0)},
    .may_alias = {{5, 1}, {6, 2}},
    .make = [](const KernelInfo& info) { return std::make_unique<MultiHeadAttentionKernel>(kOneRow, info); },
    .unsupported = [](const NodeView& node) { return WhyUnsupported(kOneRow, node); },
}));

}  // namespace
}  // namespace npu
