// Shapes of queries, keys and values, in tensors of rows and in pages, with their prefix, rope parts and scales.
#include "ep/kernels/attention/core/key_value_rows.h"
#include "ep/kernels/attention/inference/call.h"
#include "ep/kernels/quantization/scaled_row.h"

namespace npu::attention {

void InferenceCall::SetOperands() {
  q_ = Operand("query", in_.query, a_.heads);
  p_.head_size = HeadSize("query", in_.query, q_);
  p_.query = {in_.query.data, q_.head_stride, q_.row_stride};
  k_ = CacheOperand("key", in_.key, p_.key);
  v_ = CacheOperand("value", in_.value, p_.value);
  if (in_.scaled_rows) {
    SplitScaledRows("key", p_.key, k_);
    SplitScaledRows("value", p_.value, v_);
  }
  const int64_t key_size = HeadSize("key", in_.key, k_);
  p_.value_size = HeadSize("value", in_.value, v_);
  NPU_OP_CHECK(a_.op, key_size == p_.head_size, "expected key of query's head size ", p_.head_size, ", got ", key_size);
  NPU_OP_CHECK(a_.op, v_.rows == k_.rows, "expected value of key's sequence length ", k_.rows, ", got ", v_.rows);
  NPU_OP_CHECK(a_.op, v_.pages == k_.pages, "expected value of key's ", k_.pages, " blocks, got ", v_.pages);
  if (paged()) {
    p_.pages = {in_.block_table.as<const int32_t>(), in_.block_table.shape[1], a_.block_size, k_.pages};
  }
  if (quantised() && !in_.scaled_rows) {
    SetQuant(false, p_.key, k_);
    SetQuant(true, p_.value, v_);
  }
}

Axes InferenceCall::Operand(const char* name, const TensorView& t, int64_t heads) const {
  const Form form = layout_.input;
  NPU_OP_CHECK(a_.op, t.shape.rank() == RankOf(form), "expected ", name, " of shape ", AxesText(form),
               " for input_layout ", layout_.name, ", got ", t.shape);
  if (JoinsHeads(form)) {
    NPU_OP_CHECK(a_.op, t.shape.back() % heads == 0, "expected the last axis of ", name, " to be a multiple of its ",
                 heads, " heads, got ", t.shape.back());
  }
  const Axes axes = AxesOf(t.shape, form, heads);
  NPU_OP_CHECK(a_.op, axes.heads == heads, "expected ", heads, " heads in ", name, ", got ", axes.heads);
  return axes;
}

int64_t InferenceCall::HeadSize(const char* name, const TensorView& t, const Axes& axes) const {
  const int64_t size = t.dtype == DType::kInt32 ? Shape{axes.size, 8}.Elements() : axes.size;
  NPU_OP_CHECK(a_.op, size >= 1 && size <= kMaxCacheHeadSize, "expected a head size from 1 to ", kMaxCacheHeadSize,
               " in ", name, ", got ", size);
  return size;
}

InferenceCall::Cache InferenceCall::CacheOperand(const char* name, const TensorView& t, CacheRows& rows) const {
  Cache c;
  if (paged()) {
    static_cast<Axes&>(c) = PagesOperand(name, t, rows);
    c.pages = c.batch;
    rows.page_stride = c.batch_stride;
    c.rows = Shape{in_.block_table.shape[1], a_.block_size}.Elements();
  } else {
    static_cast<Axes&>(c) = Operand(name, t, a_.key_heads);
    NPU_OP_CHECK(a_.op, packed() || c.batch == q_.batch, "expected ", name, " of query's batch size ", q_.batch,
                 ", got ", c.batch);
  }
  NPU_OP_CHECK(a_.op, c.rows < INT32_MAX, "expected a sequence shorter than 2^31 - 1 in ", name, ", got ", c.rows);
  rows.data = t.data;
  rows.head_stride = c.head_stride;
  rows.row_stride = c.row_stride;
  rows.dtype = t.dtype;
  return c;
}

// The pages are the batch in the sense of AxesOf.
Axes InferenceCall::PagesOperand(const char* name, const TensorView& t, CacheRows& rows) const {
  const TensorView& table = in_.block_table;
  NPU_OP_CHECK(
      a_.op, table.dtype == DType::kInt32 && table.shape.rank() == 2 && (packed() || table.shape[0] == q_.batch),
      "expected block_table int32 of shape [B, blocks of a sequence], got ", NameOf(table.dtype), " ", table.shape);
  NPU_OP_CHECK(a_.op, a_.block_size >= 1, "expected block_size >= 1 with block_table, got ", a_.block_size);
  const Shape& shape = t.shape;
  const int rank = shape.rank();
  NPU_OP_CHECK(a_.op, rank >= 3 && rank <= 5, "expected ", name,
               " with block_table of shape [blocks, block_size, N*D], [blocks, N, block_size, D] or "
               "[blocks, N, D/16, block_size, 16], got ",
               shape);
  const int64_t found = shape[rank == 3 ? 1 : rank - 2];
  NPU_OP_CHECK(a_.op, found == a_.block_size, "expected blocks of block_size ", a_.block_size, " rows in ", name,
               ", got shape ", shape);
  NPU_OP_CHECK(a_.op, rank == 3 ? shape[2] % a_.key_heads == 0 : shape[1] == a_.key_heads, "expected ", a_.key_heads,
               " heads in ", name, ", got shape ", shape);
  if (rank == 3) return AxesOf(shape, Form::kBSH, a_.key_heads);
  if (rank == 4) return AxesOf(shape, Form::kBNSD, a_.key_heads);
  // The device's matrix layout: the head size in pieces, each with all rows of the block.
  rows.chunk = shape[4];
  rows.chunk_stride = shape.Elements(3, 5);
  return {
      shape[0], shape[1], shape[3], Shape{shape[2], shape[4]}.Elements(), shape.Elements(1, 5), shape.Elements(2, 5),
      shape[4]};
}

// Heads of so many bytes are elements and, at an address that is a multiple of its size, a scale.
void InferenceCall::SplitScaledRows(const char* name, CacheRows& rows, Cache& cache) const {
  NPU_OP_CHECK(
      a_.op, rows.dtype == DType::kInt8 && rows.chunk == 0 && cache.size > kScaleBytes && cache.size % kScaleBytes == 0,
      "expected ", name, " of int8, with heads of a multiple of 4 elements and their scale, got ", NameOf(rows.dtype),
      " with heads of ", cache.size, " bytes");
  cache.size -= kScaleBytes;
  rows.quant.dtype = DType::kFloat32;
  rows.quant.scale = static_cast<const char*>(rows.data) + cache.size;
  rows.quant.head_stride = rows.head_stride / kScaleBytes;
  rows.quant.row_stride = rows.row_stride / kScaleBytes;
  rows.quant.page_stride = rows.page_stride / kScaleBytes;
}

void InferenceCall::SetRope() {
  const TensorView &query = in_.query_rope, &key = in_.key_rope;
  NPU_OP_CHECK(a_.op, bool(query) == bool(key), "expected query_rope and key_rope together, got only ",
               query ? "query_rope" : "key_rope");
  if (!query) return;
  if (p_.query_dtype == DType::kInt8) {
    NPU_OP_CHECK(a_.op, query.dtype == key.dtype, "expected query_rope and key_rope of one dtype, got ",
                 NameOf(query.dtype), " and ", NameOf(key.dtype));
  } else {
    NPU_OP_CHECK(a_.op, query.dtype == p_.query_dtype && key.dtype == p_.query_dtype,
                 "expected query_rope and key_rope of query's dtype ", NameOf(p_.query_dtype), ", got ",
                 NameOf(query.dtype), " and ", NameOf(key.dtype));
  }
  query_rope_ = Operand("query_rope", query, a_.heads);
  key_rope_ = CacheOperand("key_rope", key, p_.key_rope);
  p_.rope_size = HeadSize("query_rope", query, query_rope_);
  NPU_OP_CHECK(a_.op, query_rope_.batch == q_.batch && query_rope_.rows == q_.rows,
               "expected query_rope of query's shape but for the head size, got ", query.shape);
  NPU_OP_CHECK(
      a_.op,
      key_rope_.rows == k_.rows && key_rope_.pages == k_.pages && HeadSize("key_rope", key, key_rope_) == p_.rope_size,
      "expected key_rope of key's shape with query_rope's head size ", p_.rope_size, ", got ", key.shape);
  p_.query_rope = {query.data, query_rope_.head_stride, query_rope_.row_stride};
}

void InferenceCall::SetPrefix() {
  const TensorView &key = in_.key_shared_prefix, &value = in_.value_shared_prefix, &length = in_.prefix_length;
  NPU_OP_CHECK(a_.op, bool(key) == bool(value),
               "expected key_shared_prefix and value_shared_prefix together, got only ",
               key ? "key_shared_prefix" : "value_shared_prefix");
  NPU_OP_CHECK(a_.op, key || !length, "expected key_shared_prefix with actual_shared_prefix_len, got none");
  if (!key) return;
  const auto operand = [&](const char* name, const TensorView& t, const char* of, int64_t size, CacheRows& rows) {
    NPU_OP_CHECK(a_.op, t.dtype == rows.dtype, "expected ", name, " of ", of, "'s dtype ", NameOf(rows.dtype), ", got ",
                 NameOf(t.dtype));
    const Axes axes = Operand(name, t, a_.key_heads);
    NPU_OP_CHECK(a_.op, axes.batch == 1, "expected ", name, " of batch size 1, got ", axes.batch);
    NPU_OP_CHECK(a_.op, HeadSize(name, t, axes) == size, "expected ", name, " of ", of, "'s head size ", size, ", got ",
                 HeadSize(name, t, axes));
    rows.prefix = {t.data, axes.head_stride, axes.row_stride};
    return axes.rows;
  };
  const int64_t rows = operand("key_shared_prefix", key, "key", p_.head_size, p_.key);
  const int64_t value_rows = operand("value_shared_prefix", value, "value", p_.value_size, p_.value);
  NPU_OP_CHECK(a_.op, value_rows == rows, "expected value_shared_prefix of key_shared_prefix's sequence length ", rows,
               ", got ", value_rows);
  p_.prefix_rows = Lengths("actual_shared_prefix_len", length, 1, rows)[0];
  NPU_OP_CHECK(a_.op, keys() < INT32_MAX, "expected prefix and key shorter than 2^31 - 1 together, got ", keys());
}

namespace {

// How messages describe the modes of antiquant scales.
constexpr const char* kScaleForms[] = {"1 or N*D elements",
                                       "shape [B, S]",
                                       "N elements",
                                       "shape [B, N, S]",
                                       "[blocks, block_size] elements",
                                       "[blocks, N, block_size] elements"};

}  // namespace

void InferenceCall::SetQuant(bool of_value, CacheRows& rows, Cache& cache) const {
  const bool joint = in_.antiquant_scale.present;
  NPU_OP_CHECK(a_.op,
               joint ? !in_.key_antiquant_scale && !in_.value_antiquant_scale
                     : in_.key_antiquant_scale && in_.value_antiquant_scale,
               "expected either antiquant_scale or both key_antiquant_scale and value_antiquant_scale");
  NPU_OP_CHECK(a_.op, joint || !in_.antiquant_offset, "expected antiquant_scale with antiquant_offset, got none");
  NPU_OP_CHECK(a_.op, !joint || (!in_.key_antiquant_offset && !in_.value_antiquant_offset),
               "expected antiquant_offset with antiquant_scale, got an offset of key or value alone");
  const std::string name = joint ? "antiquant" : of_value ? "value_antiquant" : "key_antiquant";
  const TensorView& scale = joint      ? in_.antiquant_scale
                            : of_value ? in_.value_antiquant_scale
                                       : in_.key_antiquant_scale;
  const TensorView& offset = joint      ? in_.antiquant_offset
                             : of_value ? in_.value_antiquant_offset
                                        : in_.key_antiquant_offset;
  const int64_t mode = joint ? a_.antiquant_mode : of_value ? a_.value_antiquant_mode : a_.key_antiquant_mode;
  const int64_t modes = joint ? 2 : 6;
  NPU_OP_CHECK(a_.op, mode >= 0 && mode < modes, "expected ", name, "_mode from 0 to ", modes - 1, ", got ", mode);
  NPU_OP_CHECK(a_.op, scale.dtype == p_.query_dtype || scale.dtype == DType::kFloat32, "expected ", name,
               "_scale of query's dtype or float32, got ", NameOf(scale.dtype));

  const Shape& shape = scale.shape;
  const int64_t elements = scale.elements();
  const int64_t n = joint ? elements / 2 : elements, heads = a_.key_heads;
  const int64_t last = shape.rank() == 0 ? 1 : shape.back();
  const int64_t size = of_value ? p_.value_size : p_.head_size, page_rows = a_.block_size;
  const int64_t entries = paged() ? in_.block_table.shape[0] : cache.batch;
  const auto is = [](int64_t count, const Shape& s) { return count == s.Elements(); };
  AntiQuant& quant = rows.quant;
  bool fits = false;
  switch (mode) {
    case 0:
      fits = n == 1 || is(n, {heads, size});
      if (n != 1) quant.head_stride = size, quant.column_stride = 1;
      break;
    case 1:
      fits = is(n, {entries, last}) && last >= cache.rows;
      quant.row_stride = 1;
      cache.quant_batch_stride = last;
      break;
    case 2:
      fits = n == heads;
      quant.head_stride = 1;
      break;
    case 3:
      fits = is(n, {entries, heads, last}) && last >= cache.rows;
      quant.row_stride = 1;
      quant.head_stride = last;
      cache.quant_batch_stride = heads * last;
      break;
    case 4:
      fits = paged() && is(n, {cache.pages, page_rows});
      quant.row_stride = 1;
      quant.page_stride = page_rows;
      break;
    case 5:
      fits = paged() && is(n, {cache.pages, heads, page_rows});
      quant.row_stride = 1;
      quant.head_stride = page_rows;
      quant.page_stride = heads * page_rows;
      break;
  }
  fits = fits && (!joint || (shape.rank() >= 1 && shape[0] == 2));
  NPU_OP_CHECK(a_.op, fits, "expected ", name, "_scale with ", joint ? "two times " : "", kScaleForms[mode], " for ",
               name, "_mode ", mode, mode >= 4 && !paged() ? " and a block_table" : "", ", got ", shape);
  if (offset) {
    NPU_OP_CHECK(a_.op, offset.dtype == scale.dtype && offset.elements() == elements, "expected ", name,
                 "_offset like ", name, "_scale, ", NameOf(scale.dtype), " ", shape, ", got ", NameOf(offset.dtype),
                 " ", offset.shape);
  }
  const size_t skipped = joint && of_value ? BytesFor(scale.dtype, n) : 0;
  quant.dtype = scale.dtype;
  quant.scale = scale.as<const char>() + skipped;
  quant.offset = offset ? offset.as<const char>() + skipped : nullptr;
}

}  // namespace npu::attention
