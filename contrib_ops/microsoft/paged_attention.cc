// PagedAttention: normalises and rotates new queries and keys, writes keys and values to their slots of a cache in
// pages, and attends to it, by the attention core. Sequences are packed one after the other; the cache is [pages, page
// rows, Nkv, D].
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/grouped_heads.h"
#include "contrib_ops/microsoft/head_attention.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/rotary_task.h"

namespace npu {
namespace {

constexpr const char* kOp = "PagedAttention";
constexpr DTypeSet kTypes{DType::kFloat16, DType::kBFloat16}, kInt32{DType::kInt32}, kScale{DType::kFloat32};
constexpr DTypeSet kCaches = kTypes | DTypeSet{DType::kInt8, DType::kFloat8E4M3FN, DType::kUInt8};

enum In {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kCumulative,
  kPast,
  kTable,
  kCos,
  kSin,
  kSlots,
  kSink,
  kQueryNorm,
  kKeyNorm,
  kKeyScale,
  kValueScale,
  kMetadata
};

// What is done before the attention. A token's position is the number of rows before it in its sequence.
struct Preparation {
  int64_t tokens, size, element, page_rows, pages, table_width;
  NewRows query, key, value;
  HeadNorm query_norm, key_norm;
  std::vector<int64_t> starts, past;  // of each sequence
  TensorView cosines, sines;          // absent: nothing is rotated
  bool interleaved;
  void *rotated_query, *rotated_key;
  int64_t* positions;
  const int32_t *table, *slots;  // `slots` may be null
  TensorView keys, values;       // the caches
  TensorView sink;
  float* float_sink;

  template <class T>
  void Run() const {
    for (size_t b = 0; b + 1 < starts.size(); ++b) {
      for (int64_t t = starts[b]; t < starts[b + 1]; ++t) positions[t] = past[b] + t - starts[b];
    }
    for (int64_t h = 0; sink && h < query.heads; ++h) float_sink[h] = ToFloat(sink.as<const T>()[h]);
    query_norm.Run<T>();
    key_norm.Run<T>();
    NewRows new_keys = key;
    if (cosines) {
      Rotate<T>(query, rotated_query);
      Rotate<T>(key, rotated_key);
      new_keys = {static_cast<const char*>(rotated_key), key.heads, key.heads * size};
    }
    const int64_t row = key.heads * size * element;
    for (size_t b = 0; b + 1 < starts.size(); ++b) {
      for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
        const int64_t slot = SlotOf(static_cast<int64_t>(b), t);
        if (slot < 0) continue;
        std::copy_n(new_keys.data + t * new_keys.pitch * element, row, keys.as<char>() + slot * row);
        std::copy_n(value.data + t * value.pitch * element, row, values.as<char>() + slot * row);
      }
    }
  }

 private:
  // -1: not written.
  int64_t SlotOf(int64_t sequence, int64_t token) const {
    if (slots != nullptr) return CheckedNumbers(kOp, "slot_mapping", slots, -1, pages * page_rows)[token];
    const int64_t position = positions[token];
    const CheckedNumbers page(kOp, "block_table entries", table, 0, pages);
    return page[sequence * table_width + position / page_rows] * page_rows + position % page_rows;
  }
  template <class T>
  void Rotate(const NewRows& rows, void* to) const {
    RotaryTask task{kOp,         {},        cosines,         sines, {}, {}, {}, 2 * cosines.shape[1],
                    interleaved, positions, cosines.shape[0]};
    task.x.data = const_cast<char*>(rows.data);
    task.in = {1, rows.heads, tokens, size, 0, size, rows.pitch};
    task.y.data = to;
    task.out = Heads::Joined(1, rows.heads, tokens, size);
    task.Run<T>();
  }
};

class PagedAttentionKernel final : public GroupedHeadsKernel {
 public:
  explicit PagedAttentionKernel(const KernelInfo& info)
      : GroupedHeadsKernel(kOp, info), causal_(info.attributes.Bool("is_causal")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(kQuery);
    Preparation before = Operands(ctx, query);
    TakeNorms(ctx, kQueryNorm, kKeyNorm, query.dtype, before.tokens, before);
    SetCaches(ctx, query.dtype, before);
    SetSequences(ctx, before);
    SetRotary(ctx, query.dtype, before);

    attention::Problem p = ProblemOf(query.dtype, before.size);
    const int64_t columns = heads_ * before.size, cache_row = key_heads_ * before.size;
    p.query = rotary_ ? attention::Rows{before.rotated_query, before.size, columns}
                      : attention::Rows{const_cast<char*>(before.query.data), before.size, before.query.pitch};
    static_cast<attention::Rows&>(p.key) = {before.keys.data, before.size, cache_row};
    static_cast<attention::Rows&>(p.value) = {before.values.data, before.size, cache_row};
    p.key.page_stride = p.value.page_stride = before.page_rows * cache_row;
    p.pages = {before.table, before.table_width, before.page_rows, before.pages};
    SetSink(ctx, before, p);
    const TensorView y = ctx.Output(0, query.dtype, {before.tokens, columns});
    p.output = {y.data, before.size, columns};
    for (size_t b = 0; b < before.past.size(); ++b) {
      attention::Sequence s;
      s.query_rows = s.query_len = before.starts[b + 1] - before.starts[b];
      s.key_len = before.past[b] + s.query_rows;
      s.right = causal_ ? before.past[b] : attention::kUnbounded;
      s.left = window_ > 0 ? before.past[b] - window_ + 1 : -attention::kUnbounded;
      s.query = before.starts[b] * p.query.row_stride;
      s.output = before.starts[b] * columns;
      s.page_row = static_cast<int64_t>(b);
      p.sequences.push_back(s);
    }
    if (before.tokens == 0) return;
    DispatchFloats(kOp, query.dtype, [&](auto type) {
      attention::LaunchWork(ctx, kOp, attention::Attention(std::move(p)),
                            [before = std::move(before)] { before.Run<decltype(type)>(); });
    });
  }

 private:
  // Sizes, and where the new rows are: in three inputs, or in one after the other.
  Preparation Operands(OpContext& ctx, const TensorView& query) const {
    const TensorView key = ctx.Input(kKey), value = ctx.Input(kValue);
    const Shape& q = query.shape;
    NPU_OP_CHECK(kOp, q.rank() == 2 && key.present == value.present,
                 "expected query [tokens, hidden] with key and value, or without both, got shape ", q);
    Preparation p{};
    p.tokens = q[0];
    p.size = HeadSize(kOp, "query", q[1], key ? heads_ : heads_ + 2 * key_heads_);
    p.element = BitsOf(query.dtype) / 8;
    p.interleaved = interleaved_;
    p.query = {query.as<const char>(), heads_, q[1]};
    const Shape wanted{q[0], key_heads_ * p.size};
    if (key) {
      NPU_OP_CHECK(
          kOp, key.shape == wanted && value.shape == wanted && key.dtype == query.dtype && value.dtype == query.dtype,
          "expected key and value of query's type and shape ", wanted, ", got ", key.shape, " and ", value.shape);
      p.key = {key.as<const char>(), key_heads_, wanted[1]};
      p.value = {value.as<const char>(), key_heads_, wanted[1]};
    } else if (query.data != nullptr) {
      p.key = {p.query.data + heads_ * p.size * p.element, key_heads_, q[1]};
      p.value = {p.key.data + key_heads_ * p.size * p.element, key_heads_, q[1]};
    }
    return p;
  }

  // The caches are written in place, or to an output that has a buffer of its own and gets the old rows first.
  void SetCaches(OpContext& ctx, DType dtype, Preparation& p) const {
    const TensorView keys = ctx.Input(kKeyCache), values = ctx.Input(kValueCache);
    const Shape& s = keys.shape;
    NPU_OP_CHECK(kOp,
                 keys.dtype == dtype && values.dtype == dtype && s.rank() == 4 && s[1] > 0 && s[2] == key_heads_ &&
                     s[3] == p.size && values.shape == s,
                 "expected key_cache and value_cache [pages, page rows, ", key_heads_, ", ", p.size, "] of ",
                 NameOf(dtype), ", got ", s, " and ", values.shape);
    p.pages = s[0];
    p.page_rows = s[1];
    const auto written = [&](size_t i, const TensorView& cache) {
      const TensorView out = ctx.Output(i, dtype, s);
      if (!out) return cache;
      LaunchCopy(ctx, kOp, cache, out);
      return out;
    };
    p.keys = written(1, keys);
    p.values = written(2, values);
  }

  void SetSequences(OpContext& ctx, Preparation& p) const {
    const TensorView table = ctx.Input(kTable), slots = ctx.Input(kSlots);
    p.starts = ReadHostInts(kOp, "cumulative_sequence_length", ctx.Input(kCumulative));
    p.past = ReadHostInts(kOp, "past_seqlens", ctx.Input(kPast));
    const auto count = static_cast<int64_t>(p.past.size());
    NPU_OP_CHECK(kOp, p.starts.size() == p.past.size() + 1 && p.starts.front() == 0 && p.starts.back() == p.tokens,
                 "expected cumulative_sequence_length from 0 to ", p.tokens, " for ", count,
                 " past_seqlens, got shape ", ctx.Input(kCumulative).shape);
    NPU_OP_CHECK(kOp, table.shape.rank() == 2 && table.shape[0] == count, "expected block_table [", count,
                 ", pages], got shape ", table.shape);
    p.table = table.as<const int32_t>();
    p.table_width = table.shape[1];
    const int64_t most = p.table_width * p.page_rows;
    for (size_t b = 0; b < p.past.size(); ++b) {
      const int64_t rows = p.starts[b + 1] - p.starts[b];
      NPU_OP_CHECK(kOp, rows >= 0 && p.past[b] >= 0 && p.past[b] + rows <= most, "expected a sequence of 0 to ", most,
                   " rows, as block_table has pages for, got ", p.past[b], " past and ", rows, " new ones");
    }
    const Shape tokens{p.tokens};
    NPU_OP_CHECK(kOp, !slots || slots.shape == tokens, "expected slot_mapping of shape ", tokens, ", got ",
                 slots.shape);
    p.slots = slots ? slots.as<const int32_t>() : nullptr;
    p.positions = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, p.tokens)));
  }

  void SetRotary(OpContext& ctx, DType dtype, Preparation& p) const {
    if (!rotary_) return;
    p.cosines = ctx.Input(kCos);
    p.sines = ctx.Input(kSin);
    const Shape& table = p.cosines.shape;
    NPU_OP_CHECK(kOp,
                 p.cosines && p.sines && table.rank() == 2 && table == p.sines.shape && p.cosines.dtype == dtype &&
                     p.sines.dtype == dtype && table[1] > 0 && 2 * table[1] <= p.size,
                 "expected cos_cache and sin_cache [positions, at most ", p.size / 2, "] of query's type, got ", table,
                 " and ", p.sines.shape);
    const auto scratch = [&](int64_t heads) {
      return ctx.Workspace(BytesFor(dtype, Shape{p.tokens, heads, p.size}.Elements()));
    };
    p.rotated_query = scratch(heads_);
    p.rotated_key = scratch(key_heads_);
  }

  void SetSink(OpContext& ctx, Preparation& before, attention::Problem& p) const {
    before.sink = ctx.Input(kSink);
    if (!before.sink) return;
    NPU_OP_CHECK(kOp, before.sink.shape == Shape{heads_} && before.sink.dtype == p.query_dtype,
                 "expected head_sink of query's type and shape [", heads_, "], got ", before.sink.shape);
    before.float_sink = static_cast<float*>(ctx.Workspace(static_cast<size_t>(heads_) * sizeof(float)));
    p.sink = before.float_sink;
  }

  bool causal_;
};

std::string WhyNot(const NodeView& node) {
  const auto given = [&](size_t i) { return i < node.inputs.size() && node.inputs[i] != DType::kUndefined; };
  const bool quantised = node.attributes.String("k_quant_type", "") != "NONE" ||
                         node.attributes.String("v_quant_type", "") != "NONE" || given(kKeyScale) || given(kValueScale);
  if (quantised || node.inputs[kKeyCache] != node.inputs[kQuery])
    return "PagedAttention with a quantised cache is not implemented";
  if (node.attributes.String("kv_cache_layout", "") != "SEPARATE" || !given(kValueCache) ||
      node.attributes.Int("v_head_size") != 0)
    return "PagedAttention with a latent cache is not implemented";
  if (node.attributes.Int("rotary_offset") != 0) return "PagedAttention with a rotary_offset is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("query", kTypes), OptionalInput("key", kTypes), OptionalInput("value", kTypes),
               Input("key_cache", kCaches), OptionalInput("value_cache", kCaches),
               HostInput("cumulative_sequence_length", kInt32), HostInput("past_seqlens", kInt32),
               Input("block_table", kInt32), OptionalInput("cos_cache", kTypes), OptionalInput("sin_cache", kTypes),
               OptionalInput("slot_mapping", kInt32), OptionalInput("head_sink", kTypes),
               OptionalInput("q_norm_weight", kTypes), OptionalInput("k_norm_weight", kTypes),
               OptionalInput("k_scale", kScale), OptionalInput("v_scale", kScale),
               OptionalHostInput("attention_metadata", kInt32)},
    .outputs = {Output("output", kTypes), OptionalOutput("key_cache_out", kCaches),
                OptionalOutput("value_cache_out", kCaches)},
    .attributes = {RequiredInt("num_heads"), RequiredInt("kv_num_heads"), FloatAttribute("scale", 0.0),
                   FloatAttribute("softcap", 0.0), IntAttribute("local_window_size", -1), IntAttribute("do_rotary", 0),
                   IntAttribute("rotary_interleaved", 0), IntAttribute("rotary_offset", 0),
                   IntAttribute("is_causal", 1), IntAttribute("v_head_size", 0),
                   FloatAttribute("qk_norm_epsilon", 1e-6), StringAttribute("kv_cache_layout", "SEPARATE"),
                   StringAttribute("k_quant_type", "NONE"), StringAttribute("v_quant_type", "NONE"),
                   StringAttribute("k_cache_dtype", ""), StringAttribute("v_cache_dtype", "")},
    .may_alias = {{kKeyCache, 1}, {kValueCache, 2}},
    .make = MakeKernel<PagedAttentionKernel>,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
