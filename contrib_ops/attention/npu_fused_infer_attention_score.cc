// npu_fused_infer_attention_score: inference attention over a key/value cache. The semantics are in
// npu_fused_infer_attention_score.py; here the arguments are checked and turned into an attention::Problem.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/attention/attention.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::kUnbounded;
using attention::Problem;
using attention::Sequence;

constexpr const char* kOp = "npu_fused_infer_attention_score";
#define FIA_CHECK(condition, ...) NPU_CHECK(condition, "[", kOp, "] ", __VA_ARGS__)

enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kPseShift,
  kAttenMask,
  kActualSeqLengths,
  kActualSeqLengthsKv,
  kFirstUnsupported,
};

// Arguments whose part of the semantics is not implemented, in the order of the schema behind the ones above.
constexpr std::array kUnsupportedInputs{
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "key_antiquant_scale",
    "key_antiquant_offset",
    "value_antiquant_scale",
    "value_antiquant_offset",
    "block_table",
    "query_padding_size",
    "kv_padding_size",
    "key_shared_prefix",
    "value_shared_prefix",
    "actual_shared_prefix_len",
    "query_rope",
    "key_rope",
    "key_rope_antiquant_scale",
};

enum class Form { kBSH, kBSND, kBNSD, kNBSD };

struct Layout {
  const char* name;
  Form input, output;
};
constexpr Layout kLayouts[] = {
    {"BSH", Form::kBSH, Form::kBSH},         {"BSND", Form::kBSND, Form::kBSND},
    {"BNSD", Form::kBNSD, Form::kBNSD},      {"BNSD_BSND", Form::kBNSD, Form::kBSND},
    {"BSH_BNSD", Form::kBSH, Form::kBNSD},   {"BSND_BNSD", Form::kBSND, Form::kBNSD},
    {"BSH_NBSD", Form::kBSH, Form::kNBSD},   {"BSND_NBSD", Form::kBSND, Form::kNBSD},
    {"BNSD_NBSD", Form::kBNSD, Form::kNBSD},
};
constexpr const char* kOtherLayouts[] = {"TND", "NTD", "TND_NTD", "NTD_TND", "NSD"};

const Layout* FindLayout(const std::string& name) {
  for (const Layout& layout : kLayouts)
    if (name == layout.name) return &layout;
  return nullptr;
}

const char* NameOf(Form form) {
  constexpr const char* names[] = {"[B, S, N*D]", "[B, S, N, D]", "[B, N, S, D]", "[N, B, S, D]"};
  return names[static_cast<int>(form)];
}

// The axes of an operand, and how far apart, in elements, their entries are.
struct Axes {
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

Axes AxesOf(const Shape& shape, Form form, int64_t heads) {
  Axes a;
  switch (form) {
    case Form::kBSH:
      a = {shape[0], heads, shape[1], shape[2] / heads, shape.Elements(1, 3), shape[2] / heads, shape[2]};
      break;
    case Form::kBSND:
      a = {shape[0], shape[2], shape[1], shape[3], shape.Elements(1, 4), shape[3], shape.Elements(2, 4)};
      break;
    case Form::kBNSD:
      a = {shape[0], shape[1], shape[2], shape[3], shape.Elements(1, 4), shape.Elements(2, 4), shape[3]};
      break;
    case Form::kNBSD:
      a = {shape[1], shape[0], shape[2], shape[3], shape.Elements(2, 4), shape.Elements(1, 4), shape[3]};
      break;
  }
  return a;
}

Shape OutputShape(Form form, const Axes& query, int64_t size) {
  switch (form) {
    case Form::kBSH:
      return {query.batch, query.rows, Shape{query.heads, size}.Elements()};
    case Form::kBSND:
      return {query.batch, query.rows, query.heads, size};
    case Form::kBNSD:
      return {query.batch, query.heads, query.rows, size};
    case Form::kNBSD:
      return {query.heads, query.batch, query.rows, size};
  }
  return {};
}

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
    return_lse_ = a.Bool("softmax_lse_flag", false);
    const std::string layout = a.String("input_layout", "BSH");
    layout_ = FindLayout(layout);
    if (layout_ == nullptr) {
      for (const char* other : kOtherLayouts) {
        if (layout == other) Fail(ErrorCode::kUnsupported, "[", kOp, "] input_layout ", layout, " is not implemented");
      }
      FIA_CHECK(false, "expected input_layout BSH, BSND, BNSD, BNSD_BSND or one with another output layout, got '",
                layout, "'");
    }
    FIA_CHECK(heads_ >= 1 && heads_ <= INT32_MAX, "expected num_heads >= 1, got ", heads_);
    FIA_CHECK(key_heads_ >= 0, "expected num_key_value_heads >= 0, got ", key_heads_);
    if (key_heads_ == 0) key_heads_ = heads_;
    FIA_CHECK(heads_ % key_heads_ == 0, "expected num_key_value_heads to divide num_heads ", heads_, ", got ",
              key_heads_);
    FIA_CHECK(sparse_mode_ >= 0 && sparse_mode_ <= 4, "expected sparse_mode 0, 1, 2, 3 or 4, got ", sparse_mode_);
  }

  void Compute(OpContext& ctx) const override {
    for (size_t i = kFirstUnsupported; i < ctx.input_count(); ++i) {
      if (ctx.Input(i)) {
        Fail(ErrorCode::kUnsupported, "[", kOp, "] the argument ", kUnsupportedInputs.at(i - kFirstUnsupported),
             " is not implemented");
      }
    }
    const TensorView query = ctx.Input(kQuery), key = ctx.Input(kKey), value = ctx.Input(kValue);
    const Axes q = Operand("query", query, heads_), k = Operand("key", key, key_heads_),
               v = Operand("value", value, key_heads_);
    FIA_CHECK(key.dtype == query.dtype && value.dtype == query.dtype,
              "expected query, key and value of one dtype, got ", npu::NameOf(query.dtype), ", ",
              npu::NameOf(key.dtype), " and ", npu::NameOf(value.dtype));
    FIA_CHECK(k.batch == q.batch && v.batch == q.batch, "expected key and value of query's batch size ", q.batch,
              ", got ", k.batch, " and ", v.batch);
    FIA_CHECK(k.size == q.size, "expected key of query's head size ", q.size, ", got ", k.size);
    FIA_CHECK(v.rows == k.rows, "expected value of key's sequence length ", k.rows, ", got ", v.rows);
    FIA_CHECK(k.rows < INT32_MAX, "expected a key sequence shorter than 2^31 - 1, got ", k.rows);

    const Shape output_shape = OutputShape(layout_->output, q, v.size);
    const Shape lse_shape = return_lse_ ? Shape{q.batch, heads_, q.rows, 1} : Shape{1};
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

    const Axes o = AxesOf(output_shape, layout_->output, heads_);
    problem.sequences.resize(static_cast<size_t>(q.batch));
    // A single query takes every key: what it may not see is said by lengths and atten_mask alone.
    const bool decode = q.rows == 1;
    const std::vector<int64_t> query_lengths =
        decode ? std::vector<int64_t>(problem.sequences.size(), 1)
               : Lengths("actual_seq_lengths", ctx.Input(kActualSeqLengths), q.batch, q.rows);
    const std::vector<int64_t> key_lengths =
        Lengths("actual_seq_lengths_kv", ctx.Input(kActualSeqLengthsKv), q.batch, k.rows);
    for (size_t b = 0; b < problem.sequences.size(); ++b) {
      const auto batch = static_cast<int64_t>(b);
      Sequence& s = problem.sequences[b];
      s.query_rows = q.rows;
      s.query_len = query_lengths[b];
      s.key_len = key_lengths[b];
      s.query = batch * q.batch_stride;
      s.key = batch * k.batch_stride;
      s.value = batch * v.batch_stride;
      s.output = batch * o.batch_stride;
      s.lse = batch * heads_ * q.rows;
    }
    SetMask(ctx.Input(kAttenMask), decode, q, k, problem);
    SetBias(ctx.Input(kPseShift), q, k, problem);

    const TensorView output = ctx.Output(0, query.dtype, output_shape);
    const TensorView lse = ctx.Output(1, DType::kFloat32, lse_shape);
    problem.output = {output.data, o.head_stride, o.row_stride};
    if (lse && return_lse_) {
      problem.lse = lse.as<float>();
      problem.lse_head_stride = q.rows;
      problem.lse_row_stride = 1;
    }
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
    const int rank = layout_->input == Form::kBSH ? 3 : 4;
    FIA_CHECK(t, "expected the tensor ", name);
    FIA_CHECK(t.shape.rank() == rank, "expected ", name, " of shape ", NameOf(layout_->input), " for input_layout ",
              layout_->name, ", got ", t.shape);
    if (rank == 3) {
      FIA_CHECK(t.shape[2] % heads == 0, "expected the last axis of ", name, " to be a multiple of its ", heads,
                " heads, got ", t.shape[2]);
    }
    const Axes a = AxesOf(t.shape, layout_->input, heads);
    FIA_CHECK(a.heads == heads, "expected ", heads, " heads in ", name, ", got ", a.heads, " in shape ", t.shape);
    FIA_CHECK(a.size >= 1 && a.size <= 512, "expected a head size from 1 to 512 in ", name, ", got ", a.size);
    return a;
  }

  // One length per batch entry; `limit` where the list is absent.
  static std::vector<int64_t> Lengths(const char* name, const TensorView& list, int64_t batch, int64_t limit) {
    std::vector<int64_t> lengths(static_cast<size_t>(batch), limit);
    if (!list) return lengths;
    FIA_CHECK(list.dtype == DType::kInt64 && list.shape.rank() == 1, "expected ", name, " as a list of integers, got ",
              npu::NameOf(list.dtype), " ", list.shape);
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

  void SetMask(const TensorView& mask, bool decode, const Axes& q, const Axes& k, Problem& problem) const {
    const bool pattern = sparse_mode_ >= 2;
    const bool compressed = mask && IsCompressed(mask.shape);
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

    FIA_CHECK(BitsOf(mask.dtype) == 8, "expected atten_mask as bool, int8 or uint8, got ", npu::NameOf(mask.dtype));
    const Shape& shape = mask.shape;
    const int rank = shape.rank();
    const bool per_batch = rank >= 2 && (rank > 2 || decode) && shape[0] == q.batch;
    const bool fits = rank >= 2 && rank <= 4 && shape.back() == k.rows &&
                      (rank == 2 ? shape[0] == q.rows || per_batch : shape[rank - 2] == q.rows) &&
                      (rank < 3 || shape[0] == 1 || per_batch) && (rank < 4 || shape[1] == 1);
    FIA_CHECK(fits, "expected atten_mask of shape [", q.rows, ", ", k.rows, "], [1 or ", q.batch, ", ", q.rows, ", ",
              k.rows, "] or [1 or ", q.batch, ", 1, ", q.rows, ", ", k.rows, "]", decode ? " or [B, Skv]" : "",
              ", got ", shape);
    problem.mask = mask.as<const uint8_t>();
    problem.mask_row_stride = k.rows;
    const int64_t batch_stride = per_batch && shape[0] > 1 ? q.rows * k.rows : 0;
    for (size_t b = 0; b < problem.sequences.size(); ++b) {
      problem.sequences[b].mask = static_cast<int64_t>(b) * batch_stride;
    }
  }

  static bool IsCompressed(const Shape& shape) {
    const int rank = shape.rank();
    if (rank < 2 || rank > 4 || shape[rank - 1] != 2048 || shape[rank - 2] != 2048) return false;
    return shape.Elements(0, rank - 2) == 1;
  }

  void SetBias(const TensorView& bias, const Axes& q, const Axes& k, Problem& problem) const {
    if (!bias) return;
    const Shape& shape = bias.shape;
    FIA_CHECK(bias.dtype == problem.dtype, "expected pse_shift of query's dtype ", npu::NameOf(problem.dtype), ", got ",
              npu::NameOf(bias.dtype));
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

  const Layout* layout_ = nullptr;
  int64_t heads_ = 1, key_heads_ = 1;
  int64_t pre_tokens_ = 0, next_tokens_ = 0;
  int64_t sparse_mode_ = 0;
  float scale_ = 1.0f;
  bool return_lse_ = false;
};

std::string Unsupported(const NodeView& node) {
  for (size_t i = kFirstUnsupported; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != DType::kUndefined) {
      return Concat("the argument ", kUnsupportedInputs.at(i - kFirstUnsupported), " is not implemented");
    }
  }
  const std::string layout = node.attributes.String("input_layout", "BSH");
  for (const char* other : kOtherLayouts) {
    if (layout == other) return Concat("input_layout ", layout, " is not implemented");
  }
  return "";
}

NPU_KERNEL(NPUFusedInferAttentionScore, FusedInferAttentionScoreKernel);
const Registrar unsupported([](OpRegistry& registry) {
  registry.AddUnsupported("npu", "NPUFusedInferAttentionScore", Unsupported);
});

}  // namespace
}  // namespace npu
