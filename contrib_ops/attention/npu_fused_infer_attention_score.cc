// npu_fused_infer_attention_score: inference attention over a key/value cache. The semantics are in
// npu_fused_infer_attention_score.py; here the arguments are checked and turned into an attention::Problem.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/attention/attention.h"
#include "ep/kernels/attention/layout.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::Axes;
using attention::Form;
using attention::kUnbounded;
using attention::Problem;
using attention::Sequence;

constexpr const char* kOp = "npu_fused_infer_attention_score";
constexpr int64_t kMaxHeadSize = 512;
#define FIA_CHECK(condition, ...) NPU_CHECK(condition, "[", kOp, "] ", __VA_ARGS__)

enum Input : size_t {
  kQuery = 0,
  kKey = 1,
  kValue = 2,
  kPseShift = 3,
  kAttenMask = 4,
  kActualSeqLengths = 5,
  kActualSeqLengthsKv = 6,
  kBlockTable = 18,
  kQueryRope = 24,
  kKeyRope = 25,
};

// Inputs whose part of the semantics is not implemented.
struct NamedInput {
  size_t index;
  const char* name;
};
constexpr NamedInput kUnsupportedInputs[] = {
    {7, "dequant_scale1"},
    {8, "quant_scale1"},
    {9, "dequant_scale2"},
    {10, "quant_scale2"},
    {11, "quant_offset2"},
    {12, "antiquant_scale"},
    {13, "antiquant_offset"},
    {14, "key_antiquant_scale"},
    {15, "key_antiquant_offset"},
    {16, "value_antiquant_scale"},
    {17, "value_antiquant_offset"},
    {19, "query_padding_size"},
    {20, "kv_padding_size"},
    {21, "key_shared_prefix"},
    {22, "value_shared_prefix"},
    {23, "actual_shared_prefix_len"},
    {26, "key_rope_antiquant_scale"},
};

// A key or value operand, in a tensor of rows or in pages.
struct Cache : Axes {
  int64_t pages = 0, page_stride = 0;
};

class FusedInferAttentionScoreKernel final : public Kernel {
 public:
  explicit FusedInferAttentionScoreKernel(const KernelInfo& info) {
    const Attributes& a = info.attributes;
    heads_ = a.Int("num_heads", 1);
    key_heads_ = a.Int("num_key_value_heads", 0);
    scale_ = static_cast<float>(a.Float("scale", 1.0));
    pre_tokens_ = std::clamp(a.Int("pre_tokens", INT32_MAX), -kUnbounded, kUnbounded);
    next_tokens_ = std::clamp(a.Int("next_tokens", INT32_MAX), -kUnbounded, kUnbounded);
    sparse_mode_ = a.Int("sparse_mode", 0);
    block_size_ = a.Int("block_size", 0);
    return_lse_ = a.Bool("softmax_lse_flag", false);
    const std::string layout = a.String("input_layout", "BSH");
    layout_ = attention::FindLayout(layout);
    FIA_CHECK(layout_ != nullptr,
              "expected input_layout BSH, BSND, BNSD, TND, NTD or one of these with an output layout such as "
              "BNSD_BSND, got '",
              layout, "'");
    FIA_CHECK(heads_ >= 1 && heads_ <= INT32_MAX, "expected num_heads >= 1, got ", heads_);
    FIA_CHECK(key_heads_ >= 0, "expected num_key_value_heads >= 0, got ", key_heads_);
    if (key_heads_ == 0) key_heads_ = heads_;
    FIA_CHECK(heads_ % key_heads_ == 0, "expected num_key_value_heads to divide num_heads ", heads_, ", got ",
              key_heads_);
    FIA_CHECK(sparse_mode_ >= 0 && sparse_mode_ <= 4, "expected sparse_mode 0, 1, 2, 3 or 4, got ", sparse_mode_);
  }

  void Compute(OpContext& ctx) const override {
    for (const NamedInput& input : kUnsupportedInputs) {
      if (ctx.Input(input.index)) {
        Fail(ErrorCode::kUnsupported, "[", kOp, "] the argument ", input.name, " is not implemented");
      }
    }
    const TensorView query = ctx.Input(kQuery), key = ctx.Input(kKey), value = ctx.Input(kValue);
    const TensorView table = ctx.Input(kBlockTable);
    FIA_CHECK(query && key && value, "expected the tensors query, key and value");
    FIA_CHECK(key.dtype == query.dtype && value.dtype == query.dtype,
              "expected query, key and value of one dtype, got ", NameOf(query.dtype), ", ", NameOf(key.dtype), " and ",
              NameOf(value.dtype));
    const Axes q = Operand("query", query, heads_);
    const int64_t batch = IsPacked(layout_->input) ? -1 : q.batch;
    const Cache k = CacheOperand("key", key, table, batch), v = CacheOperand("value", value, table, batch);
    FIA_CHECK(k.size == q.size, "expected key of query's head size ", q.size, ", got ", k.size);
    FIA_CHECK(v.rows == k.rows, "expected value of key's sequence length ", k.rows, ", got ", v.rows);
    FIA_CHECK(v.pages == k.pages, "expected value of key's ", k.pages, " blocks, got ", v.pages);
    FIA_CHECK(k.rows < INT32_MAX, "expected a key sequence shorter than 2^31 - 1, got ", k.rows);

    const Shape output_shape = OutputShape(layout_->output, q, v.size);
    const Axes o = AxesOf(output_shape, layout_->output, heads_);
    Problem problem;
    problem.op = kOp;
    problem.dtype = query.dtype;
    problem.heads = heads_;
    problem.key_heads = key_heads_;
    problem.head_size = q.size;
    problem.value_size = v.size;
    problem.scale = scale_;
    problem.query = {query.data, q.head_stride, q.row_stride};
    problem.key = {key.data, k.head_stride, k.row_stride};
    problem.value = {value.data, v.head_stride, v.row_stride};
    if (table) {
      problem.pages.table = table.as<const int32_t>();
      problem.pages.table_stride = table.shape[1];
      problem.pages.page_rows = block_size_;
      problem.pages.page_count = k.pages;
      problem.pages.key_page_stride = k.page_stride;
      problem.pages.value_page_stride = v.page_stride;
    }
    Axes query_rope;
    Cache key_rope;
    SetRope(ctx, q, k, table, problem, query_rope, key_rope);

    // A single query takes every key: what it may not see is said by lengths and atten_mask alone.
    const bool decode = q.rows == 1 && !IsPacked(layout_->input) && problem.rope_size == 0;
    SetSequences(ctx, decode, q, k, table, problem);
    const Shape lse_shape = !return_lse_               ? Shape{1}
                            : IsPacked(layout_->input) ? Shape{q.rows, heads_, 1}
                                                       : Shape{q.batch, heads_, q.rows, 1};
    problem.lse_head_stride = IsPacked(layout_->input) ? 1 : q.rows;
    problem.lse_row_stride = IsPacked(layout_->input) ? heads_ : 1;
    // Until here a sequence says which batch entry and row it begins with.
    for (Sequence& s : problem.sequences) {
      const int64_t entry = s.page_row, row = s.query, key_row = s.key;
      const bool packed = IsPacked(layout_->input);
      s.query = packed ? row * q.row_stride : entry * q.batch_stride;
      s.query_rope = packed ? row * query_rope.row_stride : entry * query_rope.batch_stride;
      s.output = packed ? row * o.row_stride : entry * o.batch_stride;
      s.lse = packed ? row * heads_ : entry * heads_ * q.rows;
      s.key = table ? 0 : packed ? key_row * k.row_stride : entry * k.batch_stride;
      s.value = table ? 0 : packed ? key_row * v.row_stride : entry * v.batch_stride;
      s.key_rope = table ? 0 : packed ? key_row * key_rope.row_stride : entry * key_rope.batch_stride;
    }
    SetMask(ctx.Input(kAttenMask), decode, q, k, problem);
    SetBias(ctx.Input(kPseShift), q, k, problem);

    const TensorView output = ctx.Output(0, query.dtype, output_shape);
    const TensorView lse = ctx.Output(1, DType::kFloat32, lse_shape);
    problem.output = {output.data, o.head_stride, o.row_stride};
    if (return_lse_) problem.lse = lse.as<float>();
    if (!output) problem.sequences.clear();
    attention::Attention work(std::move(problem));
    void* workspace = work.WorkspaceBytes() > 0 ? ctx.Workspace(work.WorkspaceBytes()) : nullptr;
    float* no_lse = return_lse_ ? nullptr : lse.as<float>();
    ctx.Launch(kOp, [work = std::move(work), workspace, no_lse] {
      if (no_lse != nullptr) *no_lse = 0.0f;
      work.Run(workspace);
    });
  }

 private:
  Axes Operand(const char* name, const TensorView& t, int64_t heads) const {
    const Form form = layout_->input;
    FIA_CHECK(t.shape.rank() == RankOf(form), "expected ", name, " of shape ", AxesText(form), " for input_layout ",
              layout_->name, ", got ", t.shape);
    if (form == Form::kBSH) {
      FIA_CHECK(t.shape[2] % heads == 0, "expected the last axis of ", name, " to be a multiple of its ", heads,
                " heads, got ", t.shape[2]);
    }
    const Axes a = AxesOf(t.shape, form, heads);
    FIA_CHECK(a.heads == heads, "expected ", heads, " heads in ", name, ", got ", a.heads, " in shape ", t.shape);
    FIA_CHECK(a.size >= 1 && a.size <= kMaxHeadSize, "expected a head size from 1 to ", kMaxHeadSize, " in ", name,
              ", got ", a.size);
    return a;
  }

  // `batch` is query's, -1 where sequences are packed.
  Cache CacheOperand(const char* name, const TensorView& t, const TensorView& table, int64_t batch) const {
    Cache c;
    if (!table) {
      static_cast<Axes&>(c) = Operand(name, t, key_heads_);
      FIA_CHECK(batch < 0 || c.batch == batch, "expected ", name, " of query's batch size ", batch, ", got ", c.batch);
      return c;
    }
    FIA_CHECK(table.dtype == DType::kInt32 && table.shape.rank() == 2 && (batch < 0 || table.shape[0] == batch),
              "expected block_table int32 of shape [B, blocks of a sequence], got ", NameOf(table.dtype), " ",
              table.shape);
    FIA_CHECK(block_size_ >= 1, "expected block_size >= 1 with block_table, got ", block_size_);
    const Shape& shape = t.shape;
    const bool flat = shape.rank() == 3;
    FIA_CHECK(shape.rank() == 3 || shape.rank() == 4, "expected ", name,
              " with block_table of shape [blocks, block_size, N*D] or [blocks, N, block_size, D], got ", shape);
    FIA_CHECK(shape[flat ? 1 : 2] == block_size_, "expected blocks of block_size ", block_size_, " rows in ", name,
              ", got shape ", shape);
    FIA_CHECK(flat ? shape[2] % key_heads_ == 0 : shape[1] == key_heads_, "expected ", key_heads_, " heads in ", name,
              ", got shape ", shape);
    static_cast<Axes&>(c) = flat ? AxesOf(shape, Form::kBSH, key_heads_) : AxesOf(shape, Form::kBNSD, key_heads_);
    FIA_CHECK(c.size >= 1 && c.size <= kMaxHeadSize, "expected a head size from 1 to ", kMaxHeadSize, " in ", name,
              ", got ", c.size);
    c.pages = shape[0];
    c.page_stride = c.batch_stride;
    c.rows = Shape{table.shape[1], block_size_}.Elements();
    return c;
  }

  void SetRope(OpContext& ctx, const Axes& q, const Cache& k, const TensorView& table, Problem& problem,
               Axes& query_axes, Cache& key_axes) const {
    const TensorView query = ctx.Input(kQueryRope), key = ctx.Input(kKeyRope);
    FIA_CHECK(bool(query) == bool(key), "expected query_rope and key_rope together, got only ",
              query ? "query_rope" : "key_rope");
    if (!query) return;
    FIA_CHECK(query.dtype == problem.dtype && key.dtype == problem.dtype,
              "expected query_rope and key_rope of query's dtype ", NameOf(problem.dtype), ", got ",
              NameOf(query.dtype), " and ", NameOf(key.dtype));
    query_axes = Operand("query_rope", query, heads_);
    key_axes = CacheOperand("key_rope", key, table, IsPacked(layout_->input) ? -1 : q.batch);
    FIA_CHECK(query_axes.batch == q.batch && query_axes.rows == q.rows,
              "expected query_rope of query's shape but for the head size, got ", query.shape);
    FIA_CHECK(key_axes.rows == k.rows && key_axes.pages == k.pages && key_axes.size == query_axes.size,
              "expected key_rope of key's shape with query_rope's head size ", query_axes.size, ", got ", key.shape);
    problem.rope_size = query_axes.size;
    problem.query_rope = {query.data, query_axes.head_stride, query_axes.row_stride};
    problem.key_rope = {key.data, key_axes.head_stride, key_axes.row_stride};
    problem.pages.key_rope_page_stride = key_axes.page_stride;
  }

  // The sequences' lengths; `query` and `key` hold rows, `page_row` the batch entry.
  void SetSequences(OpContext& ctx, bool decode, const Axes& q, const Cache& k, const TensorView& table,
                    Problem& problem) const {
    const TensorView lengths = ctx.Input(kActualSeqLengths), key_lengths = ctx.Input(kActualSeqLengthsKv);
    FIA_CHECK(!table || key_lengths, "expected actual_seq_lengths_kv with block_table, got none");
    const bool packed = IsPacked(layout_->input);
    FIA_CHECK(!packed || (lengths && key_lengths),
              "expected actual_seq_lengths and actual_seq_lengths_kv for input_layout ", layout_->name);
    std::vector<int64_t> query_lengths;
    if (packed) {
      query_lengths = PackedLengths("actual_seq_lengths", lengths, -1, q.rows);
      FIA_CHECK(!table || table.shape[0] == static_cast<int64_t>(query_lengths.size()),
                "expected one row of block_table per entry of actual_seq_lengths, got ", table.shape);
    } else if (decode) {
      query_lengths.assign(static_cast<size_t>(q.batch), 1);
    } else {
      query_lengths = Lengths("actual_seq_lengths", lengths, q.batch, q.rows);
    }
    const auto count = static_cast<int64_t>(query_lengths.size());
    const std::vector<int64_t> keys = packed && !table
                                          ? PackedLengths("actual_seq_lengths_kv", key_lengths, count, k.rows)
                                          : Lengths("actual_seq_lengths_kv", key_lengths, count, k.rows);
    int64_t row = 0, key_row = 0;
    for (size_t b = 0; b < query_lengths.size(); ++b) {
      Sequence s;
      s.page_row = static_cast<int64_t>(b);
      s.query_rows = packed ? query_lengths[b] : q.rows;
      s.query_len = query_lengths[b];
      s.key_len = keys[b];
      s.query = row;
      s.key = key_row;
      row += query_lengths[b];
      key_row += keys[b];
      problem.sequences.push_back(s);
    }
    if (packed && row < q.rows) {  // rows of no sequence
      Sequence rest;
      rest.query = row;
      rest.query_rows = q.rows - row;
      problem.sequences.push_back(rest);
    }
  }

  static void CheckList(const char* name, const TensorView& list) {
    FIA_CHECK(list.dtype == DType::kInt64 && list.shape.rank() == 1, "expected ", name, " as a list of integers, got ",
              NameOf(list.dtype), " ", list.shape);
  }

  // One length per batch entry; `limit` where the list is absent.
  static std::vector<int64_t> Lengths(const char* name, const TensorView& list, int64_t batch, int64_t limit) {
    std::vector<int64_t> lengths(static_cast<size_t>(batch), limit);
    if (!list) return lengths;
    CheckList(name, list);
    const int64_t n = list.shape[0];
    FIA_CHECK(n == 1 || n >= batch, "expected ", name, " with 1 or ", batch, " entries, got ", n);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = list.as<int64_t>()[n == 1 ? 0 : b];
      FIA_CHECK(length >= 0 && length <= limit, "expected ", name, " in [0, ", limit, "], got ", length,
                " for batch entry ", b);
      lengths[static_cast<size_t>(b)] = length;
    }
    return lengths;
  }

  // The list gives the ends of the sequences in a packed axis of `limit` rows. `count` -1: any number of them.
  static std::vector<int64_t> PackedLengths(const char* name, const TensorView& list, int64_t count, int64_t limit) {
    CheckList(name, list);
    const int64_t n = list.shape[0];
    FIA_CHECK(count < 0 || n == count, "expected ", name, " with ", count, " entries, got ", n);
    std::vector<int64_t> lengths;
    int64_t begin = 0;
    for (int64_t b = 0; b < n; ++b) {
      const int64_t end = list.as<int64_t>()[b];
      FIA_CHECK(end >= begin && end <= limit, "expected ", name, " to ascend within [0, ", limit, "], got ", end,
                " behind ", begin);
      lengths.push_back(end - begin);
      begin = end;
    }
    return lengths;
  }

  void SetMask(const TensorView& mask, bool decode, const Axes& q, const Cache& k, Problem& problem) const {
    const bool pattern = sparse_mode_ >= 2;
    const bool compressed = mask && IsCompressed(mask.shape);
    FIA_CHECK(!mask || BitsOf(mask.dtype) == 8, "expected atten_mask as bool, int8 or uint8, got ", NameOf(mask.dtype));
    FIA_CHECK(!pattern || decode || compressed, "expected the [2048, 2048] atten_mask with sparse_mode ", sparse_mode_,
              ", got ", mask ? mask.shape.ToString() : "none");
    for (Sequence& s : problem.sequences) {
      const int64_t delta = s.key_len - s.query_len;
      s.left = -kUnbounded;
      s.right = kUnbounded;
      if (decode) continue;
      if (sparse_mode_ == 0 && mask) {
        s.left = -pre_tokens_;
        s.right = next_tokens_;
      } else if (sparse_mode_ == 2) {
        s.right = 0;
      } else if (sparse_mode_ == 3) {
        s.right = delta;
      } else if (sparse_mode_ == 4) {
        s.left = delta - pre_tokens_;
        s.right = delta + next_tokens_;
      }
    }
    if (!mask || (pattern && compressed)) return;

    FIA_CHECK(!IsPacked(layout_->input), "expected atten_mask with sparse_mode 2, 3 or 4 only for input_layout ",
              layout_->name, ", got sparse_mode ", sparse_mode_);
    const Shape& shape = mask.shape;
    const int rank = shape.rank();
    const bool paged = problem.pages.page_rows > 0;
    const bool per_batch = rank >= 2 && (rank > 2 || decode) && shape[0] == q.batch;
    const bool fits = rank >= 2 && rank <= 4 && (shape.back() == k.rows || (paged && shape.back() > k.rows)) &&
                      (rank == 2 ? shape[0] == q.rows || per_batch : shape[rank - 2] == q.rows) &&
                      (rank < 3 || shape[0] == 1 || per_batch) && (rank < 4 || shape[1] == 1);
    FIA_CHECK(fits, "expected atten_mask of shape [", q.rows, ", ", k.rows, "], [1 or ", q.batch, ", ", q.rows, ", ",
              k.rows, "] or [1 or ", q.batch, ", 1, ", q.rows, ", ", k.rows, "]", decode ? " or [B, Skv]" : "",
              ", got ", shape);
    problem.mask = mask.as<const uint8_t>();
    problem.mask_row_stride = shape.back();
    const int64_t batch_stride = per_batch && shape[0] > 1 ? q.rows * shape.back() : 0;
    for (size_t b = 0; b < problem.sequences.size(); ++b) {
      problem.sequences[b].mask = static_cast<int64_t>(b) * batch_stride;
    }
  }

  static bool IsCompressed(const Shape& shape) {
    const int rank = shape.rank();
    if (rank < 2 || rank > 4 || shape[rank - 1] != 2048 || shape[rank - 2] != 2048) return false;
    return shape.Elements(0, rank - 2) == 1;
  }

  void SetBias(const TensorView& bias, const Axes& q, const Cache& k, Problem& problem) const {
    if (!bias) return;
    const Shape& shape = bias.shape;
    FIA_CHECK(!IsPacked(layout_->input), "expected no pse_shift for input_layout ", layout_->name, ", got ", shape);
    FIA_CHECK(bias.dtype == problem.dtype, "expected pse_shift of query's dtype ", NameOf(problem.dtype), ", got ",
              NameOf(bias.dtype));
    FIA_CHECK(shape.rank() == 4 && (shape[0] == 1 || shape[0] == q.batch) && shape[1] == heads_ && shape[2] >= q.rows &&
                  shape[3] >= k.rows,
              "expected pse_shift of shape [1 or ", q.batch, ", ", heads_, ", >= ", q.rows, ", >= ", k.rows, "], got ",
              shape);
    problem.bias = {bias.data, shape.Elements(2, 4), shape[3]};
    const int64_t batch_stride = shape[0] > 1 ? shape.Elements(1, 4) : 0;
    for (size_t b = 0; b < problem.sequences.size(); ++b) {
      problem.sequences[b].bias = static_cast<int64_t>(b) * batch_stride;
    }
  }

  const attention::Layout* layout_ = nullptr;
  int64_t heads_ = 1, key_heads_ = 1;
  int64_t pre_tokens_ = 0, next_tokens_ = 0;
  int64_t sparse_mode_ = 0, block_size_ = 0;
  float scale_ = 1.0f;
  bool return_lse_ = false;
};

std::string Unsupported(const NodeView& node) {
  for (const NamedInput& input : kUnsupportedInputs) {
    if (input.index < node.inputs.size() && node.inputs[input.index] != DType::kUndefined) {
      return Concat("the argument ", input.name, " is not implemented");
    }
  }
  const bool paged = kBlockTable < node.inputs.size() && node.inputs[kBlockTable] != DType::kUndefined;
  if (paged && node.rank_known.size() > kKey && node.rank_known[kKey] && node.shapes[kKey].size() == 5) {
    return "caches in NZ blocks [blocks, N, D/16, block_size, 16] are not implemented";
  }
  return node.attributes.String("input_layout", "BSH") == "NSD" ? "input_layout NSD is not implemented" : "";
}

NPU_KERNEL(NPUFusedInferAttentionScore, FusedInferAttentionScoreKernel);
const Registrar unsupported([](OpRegistry& registry) {
  registry.AddUnsupported("npu", "NPUFusedInferAttentionScore", Unsupported);
});

}  // namespace
}  // namespace npu
