// Lengths, padding, masks and bias: which rows exist and which keys they see.
#include <algorithm>
#include <utility>

#include "ep/kernels/attention/inference/call.h"
#include "ep/kernels/checked_numbers.h"

namespace npu::attention {

std::vector<Sequence> InferenceCall::MakeSequences() {
  NPU_OP_CHECK(a_.op, !paged() || in_.key_lengths, "expected ", a_.key_lengths_name, " with block_table, got none");
  NPU_OP_CHECK(a_.op, !packed() || (in_.lengths && in_.key_lengths), "expected actual_seq_lengths and ",
               a_.key_lengths_name, " for input_layout ", layout_.name);
  const bool padded = in_.query_padding_size || in_.kv_padding_size;
  NPU_OP_CHECK(a_.op, !padded || (!packed() && !paged()),
               "expected no query_padding_size and kv_padding_size with block_table or a T layout");
  if (!packed()) {
    const std::vector<int64_t> lengths = decode_ ? std::vector<int64_t>(static_cast<size_t>(q_.batch), 1)
                                                 : Lengths("actual_seq_lengths", in_.lengths, q_.batch, q_.rows);
    const std::vector<int64_t> key_lengths = Lengths(a_.key_lengths_name, in_.key_lengths, q_.batch, k_.rows);
    for (int64_t b = 0; b < q_.batch; ++b) {
      AddPadded(b, lengths[static_cast<size_t>(b)], key_lengths[static_cast<size_t>(b)]);
    }
    return std::exchange(sequences_, {});
  }
  const std::vector<int64_t> lengths = PackedLengths("actual_seq_lengths", in_.lengths, -1, q_.rows);
  const auto count = static_cast<int64_t>(lengths.size());
  NPU_OP_CHECK(a_.op, !paged() || in_.block_table.shape[0] == count,
               "expected one row of block_table per entry of actual_seq_lengths, got ", in_.block_table.shape);
  const std::vector<int64_t> key_lengths = paged()
                                               ? Lengths(a_.key_lengths_name, in_.key_lengths, count, k_.rows)
                                               : PackedLengths(a_.key_lengths_name, in_.key_lengths, count, k_.rows);
  CheckSides(lengths, key_lengths);
  int64_t row = 0, key_row = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    AddSequence(static_cast<int64_t>(b), row, lengths[b], lengths[b], paged() ? 0 : key_row, key_lengths[b]);
    row += lengths[b];
    key_row += key_lengths[b];
  }
  if (row < q_.rows) AddSequence(0, row, q_.rows - row, 0, 0, 0);  // rows that belong to no sequence
  return std::exchange(sequences_, {});
}

// With padding, the rows of a batch entry end `padding` rows before the end of the axis. An entry whose first row would
// be before the axis sees no keys.
void InferenceCall::AddPadded(int64_t entry, int64_t len, int64_t key_len) {
  int64_t row = 0, key_row = 0;
  if (in_.query_padding_size && !decode_) {
    row = q_.rows - PaddingSize("query_padding_size", in_.query_padding_size) - len;
  }
  if (in_.kv_padding_size) key_row = k_.rows - PaddingSize("kv_padding_size", in_.kv_padding_size) - key_len;
  if (row < 0 || key_row < 0) return AddSequence(entry, 0, q_.rows, 0, 0, 0);
  if (row > 0) AddSequence(entry, 0, row, 0, 0, 0);
  AddSequence(entry, row, q_.rows - row, len, key_row, p_.prefix_rows + key_len);
}

int64_t InferenceCall::PaddingSize(const char* name, const TensorView& t) const {
  NPU_OP_CHECK(a_.op, t.dtype == DType::kInt64 && t.elements() == 1, "expected ", name, " as one int64, got ",
               NameOf(t.dtype), " ", t.shape);
  return std::clamp<int64_t>(ReadOnce(t.as<int64_t>()), 0, INT32_MAX);
}

// Adds `rows` rows from `row` on, of which the first `len` see keys from `key_row` on.
void InferenceCall::AddSequence(int64_t entry, int64_t row, int64_t rows, int64_t len, int64_t key_row,
                                int64_t key_len) {
  Sequence s;
  s.page_row = entry;
  s.query_rows = rows;
  s.query_len = len;
  s.key_len = key_len;
  const int64_t batch = packed() ? 0 : entry;
  s.query = batch * q_.batch_stride + row * q_.row_stride;
  s.query_rope = batch * query_rope_.batch_stride + row * query_rope_.row_stride;
  s.output = batch * o_.batch_stride + row * o_.row_stride;
  s.lse = packed() ? row * a_.heads : entry * a_.heads * q_.rows + row;
  const auto first = [&](const Cache& c) { return paged() ? 0 : batch * c.batch_stride + key_row * c.row_stride; };
  s.key = first(k_);
  s.value = first(v_);
  s.key_rope = first(key_rope_);
  const auto first_scale = [&](const Cache& c, const CacheRows& rows_of) {
    return (paged() ? entry : batch) * c.quant_batch_stride + key_row * rows_of.quant.row_stride;
  };
  s.key_quant = first_scale(k_, p_.key);
  s.value_quant = first_scale(v_, p_.value);
  // A mask or bias of packed sequences begins anew for each of them, and need not hold rows of none.
  const int64_t first_row = packed() ? 0 : row, first_column = packed() || in_.key_shared_prefix ? 0 : key_row;
  const int64_t plane = len > 0 ? entry : 0;
  s.mask = plane * mask_batch_stride_ + first_row * p_.mask_row_stride + first_column;
  s.bias = plane * bias_batch_stride_ + first_row * p_.bias.row_stride + first_column;
  if (in_.key_shared_prefix) s.column_gap = key_row;

  const int64_t delta = key_len - len;
  s.left = -kUnbounded;
  s.right = kUnbounded;
  if (!decode_ && a_.sparse_mode == 0 && in_.atten_mask) {
    s.left = -a_.pre_tokens;
    s.right = a_.next_tokens;
  } else if (!decode_ && a_.sparse_mode == 2) {
    s.right = 0;
  } else if (!decode_ && a_.sparse_mode == 3) {
    s.right = delta;
  } else if (!decode_ && a_.sparse_mode == 4) {
    s.left = delta - a_.pre_tokens;
    s.right = delta + a_.next_tokens;
  }
  sequences_.push_back(s);
}

void InferenceCall::CheckList(const char* name, const TensorView& list) const {
  NPU_OP_CHECK(a_.op, list.dtype == DType::kInt64 && list.shape.rank() == 1, "expected ", name,
               " as a list of integers, got ", NameOf(list.dtype), " ", list.shape);
}

// One length per batch entry; `limit` if the list is absent.
std::vector<int64_t> InferenceCall::Lengths(const char* name, const TensorView& list, int64_t batch,
                                            int64_t limit) const {
  std::vector<int64_t> lengths(static_cast<size_t>(batch), limit);
  if (!list) return lengths;
  CheckList(name, list);
  const int64_t n = list.shape[0];
  NPU_OP_CHECK(a_.op, n == 1 || n >= batch, "expected ", name, " with 1 or ", batch, " entries, got ", n);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = ReadOnce(list.as<int64_t>() + (n == 1 ? 0 : b));
    NPU_OP_CHECK(a_.op, length >= 0 && length <= limit, "expected ", name, " in [0, ", limit, "], got ", length,
                 " for batch entry ", b);
    lengths[static_cast<size_t>(b)] = length;
  }
  return lengths;
}

// The list holds the ends of the sequences in a packed axis of `limit` rows. `count` -1: any number of them.
std::vector<int64_t> InferenceCall::PackedLengths(const char* name, const TensorView& list, int64_t count,
                                                  int64_t limit) const {
  CheckList(name, list);
  const int64_t n = list.shape[0];
  NPU_OP_CHECK(a_.op, count < 0 || n == count, "expected ", name, " with ", count, " entries, got ", n);
  std::vector<int64_t> lengths;
  int64_t begin = 0;
  for (int64_t b = 0; b < n; ++b) {
    const int64_t end = ReadOnce(list.as<int64_t>() + b);
    NPU_OP_CHECK(a_.op, end >= begin && end <= limit, "expected ", name, " to ascend within [0, ", limit, "], got ",
                 end, " behind ", begin);
    lengths.push_back(end - begin);
    begin = end;
  }
  return lengths;
}

namespace {

// Whether the mask only stands for a pattern.
bool IsCompressed(const Shape& shape) {
  const int rank = shape.rank();
  if (rank < 2 || rank > 4 || shape[rank - 1] != 2048 || shape[rank - 2] != 2048) return false;
  return shape.Elements(0, rank - 2) == 1;
}

}  // namespace

void InferenceCall::SetMask() {
  const TensorView& mask = in_.atten_mask;
  const bool pattern = a_.sparse_mode >= 2;
  const bool compressed = mask && IsCompressed(mask.shape);
  NPU_OP_CHECK(a_.op, !mask || BitsOf(mask.dtype) == 8, "expected atten_mask as bool, int8 or uint8, got ",
               NameOf(mask.dtype));
  NPU_OP_CHECK(a_.op, !pattern || decode_ || compressed, "expected the [2048, 2048] atten_mask with sparse_mode ",
               a_.sparse_mode, ", got ", mask ? mask.shape.ToString() : "none");
  if (!mask || (pattern && compressed)) return;

  const Shape& shape = mask.shape;
  const int rank = shape.rank();
  p_.mask = mask.as<const uint8_t>();
  full_mask_ = true;
  if (packed()) {  // CheckSides looks at the shape
    if (rank < 2) return;
    p_.mask_row_stride = shape.back();
    mask_batch_stride_ = rank > 2 && shape[0] > 1 ? shape[rank - 2] * shape.back() : 0;
    return;
  }
  const bool per_batch = rank >= 2 && (rank > 2 || decode_) && shape[0] == q_.batch;
  const bool fits = rank >= 2 && rank <= 4 && (shape.back() == keys() || (paged() && shape.back() > keys())) &&
                    (rank == 2 ? shape[0] == q_.rows || per_batch : shape[rank - 2] == q_.rows) &&
                    (rank < 3 || shape[0] == 1 || per_batch) && (rank < 4 || shape[1] == 1);
  NPU_OP_CHECK(a_.op, fits, "expected atten_mask of shape [", q_.rows, ", ", keys(), "], [1 or ", q_.batch, ", ",
               q_.rows, ", ", keys(), "] or [1 or ", q_.batch, ", 1, ", q_.rows, ", ", keys(), "]",
               decode_ ? " or [B, Skv]" : "", ", got ", shape);
  p_.mask_row_stride = shape.back();
  mask_batch_stride_ = per_batch && shape[0] > 1 ? q_.rows * shape.back() : 0;
}

void InferenceCall::SetBias() {
  const TensorView& bias = in_.pse_shift;
  if (!bias) return;
  const Shape& shape = bias.shape;
  NPU_OP_CHECK(a_.op, bias.dtype == p_.bias_dtype, "expected pse_shift of ", NameOf(p_.bias_dtype), " with query ",
               NameOf(p_.query_dtype), ", got ", NameOf(bias.dtype));
  if (!packed()) CheckBias(q_.batch, q_.rows, keys());
  if (shape.rank() != 4) return;  // CheckSides says what is expected
  p_.bias = {bias.data, shape.Elements(2, 4), shape[2] == 1 ? 0 : shape[3]};
  bias_batch_stride_ = shape[0] > 1 ? shape.Elements(1, 4) : 0;
}

void InferenceCall::CheckBias(int64_t batch, int64_t rows, int64_t keys) const {
  const Shape& shape = in_.pse_shift.shape;
  const bool fits = shape.rank() == 4 && (shape[0] == 1 || shape[0] == batch) && shape[1] == a_.heads &&
                    (shape[2] == 1 || shape[2] >= rows) && shape[3] >= keys;
  NPU_OP_CHECK(a_.op, fits, "expected pse_shift of shape [1 or ", batch, ", ", a_.heads, ", 1 or >= ", rows,
               ", >= ", keys, "], got ", shape);
}

// A mask or bias of packed sequences has the rows and keys of the longest that has queries.
void InferenceCall::CheckSides(const std::vector<int64_t>& lengths, const std::vector<int64_t>& key_lengths) const {
  int64_t rows = 0, keys = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    rows = std::max(rows, lengths[b]);
    if (lengths[b] > 0) keys = std::max(keys, key_lengths[b]);
  }
  const auto batch = static_cast<int64_t>(lengths.size());
  if (full_mask_) {  // which may be empty
    const Shape& shape = in_.atten_mask.shape;
    const int rank = shape.rank();
    const bool fits = rank >= 2 && rank <= 4 && shape[rank - 2] >= rows && shape[rank - 1] >= keys &&
                      (rank == 2 || shape[0] == 1 || shape[0] == batch) && (rank < 4 || shape[1] == 1);
    NPU_OP_CHECK(a_.op, fits, "expected atten_mask of shape [>= ", rows, ", >= ", keys, "], [1 or ", batch,
                 ", >= ", rows, ", >= ", keys, "] or [1 or ", batch, ", 1, >= ", rows, ", >= ", keys,
                 "] for input_layout ", layout_.name, ", got ", shape);
  }
  if (in_.pse_shift) CheckBias(batch, rows, keys);
}

}  // namespace npu::attention
