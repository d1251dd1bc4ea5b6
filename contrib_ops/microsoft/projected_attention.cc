#include "contrib_ops/microsoft/projected_attention.h"

#include "ep/kernels/matmul/launch.h"
#include "ep/kernels/op_check.h"

namespace npu {

ProjectedHeads::ProjectedHeads(const char* name, const KernelInfo& info)
    : op(name),
      float32_products(info.float32_products),
      heads(info.attributes.Int("num_heads")),
      scale(info.attributes.Float("scale")),
      hidden(static_cast<float>(info.attributes.Float("mask_filter_value", 0.0))),
      causal(info.attributes.Bool("unidirectional", false)),
      shares_cache(info.attributes.Bool("past_present_share_buffer", false)),
      sizes(info.attributes.Ints("qkv_hidden_sizes")) {
  NPU_OP_CHECK(op, heads > 0 && heads <= INT32_MAX, "expected num_heads of 1 or more, got ", heads);
}

void ProjectedHeads::CheckWeights(const Shape& input, const Shape& weights, int rank) const {
  NPU_OP_CHECK(op, input.rank() == rank && weights.rank() == 2 && weights[0] == input.back(), "expected an input [",
               rank == 3 ? "batch, sequence" : "tokens", ", hidden] and weights [hidden, columns], got ", input,
               " and ", weights);
  if (sizes.empty()) {
    NPU_OP_CHECK(op, weights[1] % 3 == 0, "expected weights with columns for queries, keys and values, got ", weights);
    return;
  }
  NPU_OP_CHECK(op,
               sizes.size() == 3 && sizes[0] == sizes[1] && sizes[0] > 0 && sizes[0] <= weights[1] && sizes[2] > 0 &&
                   sizes[2] == weights[1] - 2 * sizes[0],
               "expected qkv_hidden_sizes [D, D, Dv], whose sum is the number of columns of weights ", weights);
}

TensorView ProjectedHeads::Projected(OpContext& ctx, const Shape& input, DType dtype, int64_t columns) const {
  Shape shape = input;
  shape[shape.rank() - 1] = columns;
  return {ctx.Workspace(BytesFor(dtype, shape.Elements())), dtype, true, shape};
}

void ProjectedHeads::Attend(OpContext& ctx, const TensorView& projected, const Operands& operands) const {
  const Shape& s = projected.shape;
  const int64_t columns = sizes.empty() ? s.back() / 3 : sizes[0], value_columns = s.back() - 2 * columns;
  const int64_t size = HeadSize(op, "weights", columns, heads),
                value_size = HeadSize(op, "weights", value_columns, heads);
  HeadAttention a{.op = op,
                  .dtype = projected.dtype,
                  .float32_products = float32_products,
                  .query = HeadRows::Columns(projected, heads, size, 0),
                  .key = HeadRows::Columns(projected, heads, size, columns),
                  .value = HeadRows::Columns(projected, heads, value_size, 2 * columns),
                  .scale = scale,
                  .causal = causal,
                  .mask = operands.mask,
                  .bias = operands.bias,
                  .hidden = hidden,
                  .ragged = operands.ragged};
  NPU_OP_CHECK(op, !a.bias || a.bias.dtype == a.dtype, "expected attention_bias of the input's type, got ",
               NameOf(a.bias.dtype));
  if (a.ragged) return a.Launch(ctx);
  const TensorView& past = operands.past;
  if (past) {
    const Shape& p = past.shape;
    NPU_OP_CHECK(op,
                 value_size == size && past.dtype == a.dtype && p.rank() == 5 && p[0] == 2 && p[1] == s[0] &&
                     p[2] == heads && p[4] == size,
                 "expected past [2, ", s[0], ", ", heads, ", rows, ", size, "] of ", NameOf(a.dtype), ", got ",
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

bool Projection::Pack(const char* op, const TensorView& constant, Stream& stream) {
  if (constant.shape.rank() != 2 || !PackMatMulWeight(op, constant, packed_, stream)) return false;
  weight_ = constant;
  weight_.data = nullptr;
  return true;
}

TensorView Projection::Launch(OpContext& ctx, const ProjectedHeads& heads, int rank, const TensorView& x,
                              const TensorView& given_weights, const TensorView& bias) const {
  const TensorView weights = packed_ ? weight_ : given_weights;
  heads.CheckWeights(x.shape, weights.shape, rank);
  const Shape columns{weights.shape.back()};
  NPU_OP_CHECK(heads.op, weights.dtype == x.dtype && (!bias || (bias.dtype == x.dtype && bias.shape == columns)),
               "expected weights and bias ", columns, " of the input's type, got ", NameOf(weights.dtype), " and ",
               bias.shape);
  const TensorView projected = heads.Projected(ctx, x.shape, x.dtype, columns[0]);
  if (projected.elements() == 0) return projected;
  ctx.Launch(heads.op, [this, x, weights, bias, projected] {
    const gemm::Matrix right = gemm::Matrix::RowMajor(weights.data, weights.shape[0], weights.shape[1]);
    const gemm::Matrix rows = gemm::Matrix::RowMajor(x.data, projected.elements() / right.columns, right.rows);
    const gemm::Result result{projected.data, projected.dtype, right.columns};
    gemm::Epilogue epilogue;
    if (bias) epilogue.AddBias(bias, 0);
    if (packed_) {
      gemm::Multiply(rows, packed_.matrix(right), result, epilogue);
    } else {
      gemm::Multiply(x.dtype, rows, right, result, epilogue);
    }
  });
  return projected;
}

}  // namespace npu
