#include "contrib_ops/microsoft/head_attention.h"

#include <cmath>
#include <optional>
#include <utility>

#include "contrib_ops/microsoft/score_bias.h"
#include "ep/kernels/attention/core/appended_rows.h"
#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/bfloat16_operands.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using attention::AppendedRows;
using attention::Axes;
using attention::Form;

// Rows that the core reads: where they are, or where `appended` gathers them.
struct Gathered {
  void* data;
  Axes axes;
  std::optional<AppendedRows> appended;
};

Gathered InPlace(const HeadRows& rows) { return {const_cast<void*>(rows.data), rows.axes, {}}; }

Gathered Gather(OpContext& ctx, const HeadAttention& a, const HeadRows& rows, const HeadCache& cache, int64_t past_rows,
                int64_t past_capacity, int64_t capacity) {
  if (cache.past == nullptr && cache.present == nullptr && rows.bias == nullptr) return InPlace(rows);
  const Shape shape{rows.axes.batch, rows.axes.heads, capacity, rows.axes.size};
  void* all = cache.present != nullptr ? cache.present : ctx.Workspace(BytesFor(a.dtype, shape.Elements()));
  Axes axes = attention::AxesOf(shape, Form::kBNSD, 0);
  axes.rows = past_rows + rows.axes.rows;
  return {all, axes,
          AppendedRows{a.op, a.dtype, rows.data, rows.axes, rows.bias, all, capacity, cache.past, past_capacity,
                       past_rows}};
}

attention::Rows RowsOf(const Gathered& gathered) {
  return {gathered.data, gathered.axes.head_stride, gathered.axes.row_stride};
}

}  // namespace

HeadRows HeadRows::Columns(const TensorView& matrix, int64_t heads, int64_t size, int64_t first) {
  const int64_t pitch = matrix.shape.back(), rows = matrix.shape[matrix.shape.rank() - 2];
  const int64_t batch = matrix.shape.rank() == 3 ? matrix.shape[0] : 1;
  const void* data = matrix.data == nullptr ? nullptr : matrix.as<const char>() + BytesFor(matrix.dtype, first);
  return {data, {batch, heads, rows, size, rows * pitch, size, pitch}};
}

void HeadAttention::Launch(OpContext& ctx) const {
  const Axes& q = query.axes;
  const int64_t total = past_rows + key.axes.rows;
  NPU_OP_CHECK(op, total < INT32_MAX, "expected fewer than 2^31 - 1 keys, got ", total);
  ScoreShape scores{q.batch, q.heads, q.rows, total};
  if (ragged) scores = {ragged->sequences(), q.heads, ragged->longest, ragged->longest};
  ScoreBias score_bias(op, mask_name, mask, bias, scores, hidden);
  const Gathered queries = Gather(ctx, *this, query, {}, 0, 0, q.rows);
  const Gathered all_keys = Gather(ctx, *this, key, keys, past_rows, past_capacity, capacity);
  const Gathered all_values = Gather(ctx, *this, value, values, past_rows, past_capacity, capacity);

  attention::Problem p;
  p.op = op;
  p.query_dtype = p.output_dtype = p.key.dtype = p.value.dtype = dtype;
  p.heads = q.heads;
  p.key_heads = key.axes.heads;
  p.head_size = q.size;
  p.value_size = value.axes.size;
  p.scale = static_cast<float>(scale == 0.0 ? 1 / std::sqrt(static_cast<double>(q.size)) : scale);
  p.query = RowsOf(queries);
  static_cast<attention::Rows&>(p.key) = RowsOf(all_keys);
  static_cast<attention::Rows&>(p.value) = RowsOf(all_values);
  score_bias.Allocate(ctx, p);
  const int64_t columns = q.heads * value.axes.size;
  const TensorView y = ctx.Output(0, dtype, ragged ? Shape{q.rows, columns} : Shape{q.batch, q.rows, columns});
  p.output = {y.data, value.axes.size, columns};
  for (int64_t b = 0; b < scores.batch; ++b) {
    // Of ragged rows, the sequences are stretches of the rows of one batch entry.
    const int64_t entry = ragged ? 0 : b, first = ragged ? ragged->starts[static_cast<size_t>(b)] : 0;
    const int64_t rows = ragged ? ragged->starts[static_cast<size_t>(b + 1)] - first : q.rows;
    attention::Sequence s;
    s.query_rows = s.query_len = rows;
    s.key_len = ragged ? rows : total;
    s.left = -attention::kUnbounded;
    s.right = causal ? past_rows : attention::kUnbounded;
    s.query = entry * queries.axes.batch_stride + first * queries.axes.row_stride;
    s.key = entry * all_keys.axes.batch_stride + first * all_keys.axes.row_stride;
    s.value = entry * all_values.axes.batch_stride + first * all_values.axes.row_stride;
    s.output = (entry * q.rows + first) * columns;
    s.bias = b * score_bias.batch_stride();
    const bool fewer_rows = causal && 0 < rows && rows < s.key_len - past_rows;
    if (fewer_rows) s.query_rows = s.query_len = rows - 1;
    p.sequences.push_back(s);
    if (!fewer_rows) continue;
    s.query_rows = s.query_len = 1;
    s.right = attention::kUnbounded;
    s.query += (rows - 1) * queries.axes.row_stride;
    s.output += (rows - 1) * columns;
    s.bias += (rows - 1) * p.bias.row_stride;
    p.sequences.push_back(s);
  }
  const auto before = [queries = queries.appended, keys = all_keys.appended, values = all_values.appended, score_bias] {
    for (const std::optional<AppendedRows>& rows : {queries, keys, values})
      if (rows) rows->Run();
    score_bias.Run();
  };
  if (!y || y.elements() == 0) {
    ctx.Launch(op, before);
    return;
  }
  attention::LaunchRounded(ctx, float32_products, std::move(p), before);
}

RaggedRows ReadRaggedRows(const char* op, const TensorView& cumulative, const Shape& token_offset, int64_t count) {
  NPU_OP_CHECK(op, token_offset.rank() == 2, "expected token_offset [batch, sequence], got shape ", token_offset);
  RaggedRows rows{ReadHostInts(op, "cumulative_sequence_length", cumulative), token_offset[1]};
  const int64_t sequences = token_offset[0];
  NPU_OP_CHECK(op, rows.sequences() == sequences && rows.starts.front() == 0 && rows.starts.back() == count,
               "expected cumulative_sequence_length from 0 to the number of tokens, ", count, ", for ", sequences,
               " sequences, got shape ", cumulative.shape);
  for (size_t b = 1; b < rows.starts.size(); ++b) {
    const int64_t length = rows.starts[b] - rows.starts[b - 1];
    NPU_OP_CHECK(op, length >= 0 && length <= rows.longest, "expected sequences of 0 to ", rows.longest,
                 " tokens, got ", length);
  }
  return rows;
}

int64_t HeadSize(const char* op, const char* name, int64_t columns, int64_t heads) {
  NPU_OP_CHECK(op, columns > 0 && columns % heads == 0 && columns / heads <= attention::kMaxHeadSize, "expected ", name,
               " with columns for ", heads, " heads of 1 to ", attention::kMaxHeadSize, ", got ", columns);
  return columns / heads;
}

int64_t ReadPastLength(const char* op, const TensorView& given, int64_t new_rows, int64_t capacity) {
  const int64_t past = ReadHostInt(op, "past_sequence_length", given);
  NPU_OP_CHECK(op, past >= 0 && past + new_rows <= capacity, "expected a past_sequence_length from 0 to ",
               capacity - new_rows, " for ", new_rows, " new rows in a cache of ", capacity, ", got ", past);
  return past;
}

}  // namespace npu
