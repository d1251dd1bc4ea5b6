#include "contrib_ops/microsoft/projected_attention.h"

#include "contrib_ops/microsoft/head_attention.h"

namespace npu {

ProjectedHeads::ProjectedHeads(const char* name, const KernelInfo& info)
    : op(name),
      heads(info.attributes.Int("num_heads")),
      scale(info.attributes.Float("scale")),
      hidden(static_cast<float>(info.attributes.Float("mask_filter_value"))),
      causal(info.attributes.Bool("unidirectional")),
      shares_cache(info.attributes.Bool("past_present_share_buffer")) {
  NPU_CHECK(heads > 0 && heads <= INT32_MAX, "[", op, "] expected num_heads of 1 or more, got ", heads);
}

void ProjectedHeads::CheckWeights(const Shape& input, const Shape& weights) const {
  NPU_CHECK(input.rank() == 3 && weights.rank() == 2 && weights[0] == input[2], "[", op,
            "] expected an input [batch, sequence, hidden] and weights [hidden, columns], got ", input, " and ",
            weights);
  if (sizes.empty()) {
    NPU_CHECK(weights[1] % 3 == 0, "[", op, "] expected weights with columns for queries, keys and values, got ",
              weights);
    return;
  }
  NPU_CHECK(sizes.size() == 3 && sizes[0] == sizes[1] && sizes[0] > 0 && sizes[0] <= weights[1] && sizes[2] > 0 &&
                sizes[2] == weights[1] - 2 * sizes[0],
            "[", op, "] expected qkv_hidden_sizes [D, D, Dv], whose sum is the number of columns of weights ", weights);
}

TensorView ProjectedHeads::Projected(OpContext& ctx, const Shape& input, DType dtype, int64_t columns) const {
  const Shape shape{input[0], input[1], columns};
  return {ctx.Workspace(BytesFor(dtype, shape.Elements())), dtype, true, shape};
}

void ProjectedHeads::Attend(OpContext& ctx, const TensorView& projected, const Operands& operands) const {
  const Shape& s = projected.shape;
  const int64_t columns = sizes.empty() ? s[2] / 3 : sizes[0], value_columns = s[2] - 2 * columns;
  const int64_t size = HeadSize(op, "weights", columns, heads),
                value_size = HeadSize(op, "weights", value_columns, heads);
  HeadAttention a{.op = op,
                  .dtype = projected.dtype,
                  .query = HeadRows::Columns(projected, heads, size, 0),
                  .key = HeadRows::Columns(projected, heads, size, columns),
                  .value = HeadRows::Columns(projected, heads, value_size, 2 * columns),
                  .scale = scale,
                  .causal = causal,
                  .mask = operands.mask,
                  .bias = operands.bias,
                  .hidden = hidden};
  NPU_CHECK(!a.bias || a.bias.dtype == a.dtype, "[", op, "] expected attention_bias of the input's type, got ",
            NameOf(a.bias.dtype));
  const TensorView& past = operands.past;
  if (past) {
    const Shape& p = past.shape;
    NPU_CHECK(value_size == size && past.dtype == a.dtype && p.rank() == 5 && p[0] == 2 && p[1] == s[0] &&
                  p[2] == heads && p[4] == size,
              "[", op, "] expected past [2, ", s[0], ", ", heads, ", rows, ", size, "] of ", NameOf(a.dtype), ", got ",
              NameOf(past.dtype), " ", p);
    a.past_rows = a.past_capacity = p[3];
    if (shares_cache) a.past_rows = ReadPastLength(op, operands.past_length, s[1], p[3]);
  }
  a.capacity = past && shares_cache ? a.past_capacity : a.past_rows + s[1];
  const Shape cache{2, s[0], heads, a.capacity, size};
  const TensorView present = value_size == size ? ctx.Output(1, a.dtype, cache) : TensorView{};
  if (past) {
    a.keys.past = past.data;
    a.values.past = past.as<const char>() + past.bytes() / 2;
  }
  if (present) {
    a.keys.present = present.data;
    a.values.present = present.as<char>() + present.bytes() / 2;
  }
  a.Launch(ctx);
}

}  // namespace npu
