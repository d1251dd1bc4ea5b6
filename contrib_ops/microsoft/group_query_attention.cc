// GroupQueryAttention: normalises and rotates new queries and keys, appends keys and values to the cache and attends to
// it, by the attention core. The cache is [B, Nkv, rows, D]; a row of the batch has seqlens_k + 1 keys, the new ones
// included.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/grouped_heads.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/rotary/rotary_task.h"

namespace npu {
namespace {

constexpr const char* kOp = "GroupQueryAttention";
constexpr DTypeSet kInt32{DType::kInt32};

#define GQA_CHECK(condition, ...) NPU_CHECK(condition, "[", kOp, "] ", __VA_ARGS__)

enum In {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLengths,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm
};

struct Cache {
  TensorView past, present;  // past may be absent
};

// What is done before the attention.
struct Preparation {
  int64_t batch, steps, size, element, cache_rows;
  NewRows query, key, value;
  HeadNorm query_norm, key_norm;
  Cache keys, values;
  std::vector<int64_t> past;  // rows of each entry
  TensorView cosines, sines, rotated_query;
  bool interleaved;
  const int64_t* given_positions;  // null: they count from `past` on
  int64_t* positions;
  TensorView sink;
  float* float_sink;

  template <class T>
  void Run() const {
    for (int64_t b = 0; positions != nullptr && b < batch; ++b) {
      for (int64_t i = 0; i < steps; ++i)
        positions[b * steps + i] =
            given_positions == nullptr ? past[static_cast<size_t>(b)] + i : given_positions[b * steps + i];
    }
    for (int64_t h = 0; float_sink != nullptr && h < query.heads; ++h)
      float_sink[h] = sink ? ToFloat(sink.as<const T>()[h]) : 0.0f;
    query_norm.Run<T>();
    key_norm.Run<T>();
    MovePast(keys);
    MovePast(values);
    if (cosines) {
      Rotate<T>(query, rotated_query.as<char>(), Heads::Joined(batch, query.heads, steps, size), false);
      Rotate<T>(key, keys.present.as<char>(), Heads::Separate(batch, key.heads, cache_rows, size), true);
    } else {
      Append(key, keys.present.as<char>());
    }
    Append(value, values.present.as<char>());
  }

 private:
  // Rows of a new cache that nothing is written to are 0, as in onnxruntime.
  void MovePast(const Cache& cache) const {
    if (cache.past && cache.past.data == cache.present.data) return;
    const int64_t row = size * element, heads = cache.present.shape[1];
    const int64_t old_rows = cache.past ? cache.past.shape[2] : 0;
    ParallelFor(batch * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* to = cache.present.as<char>() + i * cache_rows * row;
        const int64_t kept = std::min(past[static_cast<size_t>(i / heads)], old_rows);
        if (kept > 0) std::copy_n(cache.past.as<const char>() + i * old_rows * row, kept * row, to);
        std::fill(to + kept * row, to + cache_rows * row, 0);
      }
    });
  }
  void Append(const NewRows& rows, char* cache) const {
    ParallelFor(batch * rows.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / rows.heads, first = i * cache_rows + past[static_cast<size_t>(b)];
        const char* from = rows.data + (b * steps * rows.pitch + i % rows.heads * size) * element;
        CopyRows(cache + first * size * element, size * element, from, rows.pitch * element, size * element, steps);
      }
    });
  }
  // Each entry of a cache has its own first row.
  template <class T>
  void Rotate(const NewRows& rows, char* to, Heads out, bool append) const {
    for (int64_t b = 0; b < batch; ++b) {
      RotaryTask task{kOp, {}, cosines, sines, {}, {}, {}, 2 * cosines.shape[1], interleaved, nullptr, 0};
      task.x.data = const_cast<char*>(rows.data) + b * steps * rows.pitch * element;
      task.in = {1, rows.heads, steps, size, 0, size, rows.pitch};
      const int64_t skipped = append ? past[static_cast<size_t>(b)] * out.row_stride : 0;
      task.y.data = to + (b * out.batch_stride + skipped) * element;
      task.out = out;
      task.out.rows = steps;
      task.positions = positions + b * steps;
      task.table_rows = cosines.shape[0];
      task.Run<T>();
    }
  }
};

class GroupQueryKernel final : public GroupedHeadsKernel {
 public:
  explicit GroupQueryKernel(const KernelInfo& info)
      : GroupedHeadsKernel(kOp, info),
        causal_(info.attributes.Bool("causal")),
        smooth_(info.attributes.Int("smooth_softmax") == 1) {
    GQA_CHECK(causal_ || window_ < 0, "expected no local_window_size where causal is 0, got ", window_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(kQuery);
    Preparation before = Operands(ctx, query);
    TakeNorms(ctx, kQueryNorm, kKeyNorm, query.dtype, before.batch * before.steps, before);
    const int64_t total = ReadTotal(ctx.Input(kTotal));
    const std::vector<int64_t> lengths = ReadLengths(ctx.Input(kLengths), before.batch);
    const TensorView past_key = ctx.Input(kPastKey), past_value = ctx.Input(kPastValue);
    const int64_t past_rows = CheckPast(before, past_key, past_value, query.dtype);
    before.cache_rows = std::max(past_rows, total);
    const Shape cache{before.batch, key_heads_, before.cache_rows, before.size};
    before.keys = {past_key, CacheOutput(ctx, 1, query.dtype, cache)};
    before.values = {past_value, CacheOutput(ctx, 2, query.dtype, cache)};
    const bool first_prompt = before.steps == total;
    for (const int64_t length : lengths) {
      const int64_t past = first_prompt ? 0 : length - before.steps;
      GQA_CHECK(past >= 0 && length >= 1 && past + before.steps <= before.cache_rows &&
                    past <= std::max<int64_t>(past_rows, 0),
                "expected seqlens_k for ", before.steps, " new rows in a cache of ", before.cache_rows, ", got ",
                length - 1);
      before.past.push_back(past);
    }
    SetRotary(ctx, query, before);

    attention::Problem p = ProblemOf(query.dtype, before.size);
    if (rotary_) {
      p.query = {before.rotated_query.data, before.size, heads_ * before.size};
    } else {
      p.query = {const_cast<char*>(before.query.data), before.size, before.query.pitch};
    }
    static_cast<attention::Rows&>(p.key) = {before.keys.present.data, before.cache_rows * before.size, before.size};
    static_cast<attention::Rows&>(p.value) = {before.values.present.data, before.cache_rows * before.size, before.size};
    SetSink(ctx, before, p);
    const TensorView y = ctx.Output(0, query.dtype, {before.batch, before.steps, heads_ * before.size});
    p.output = {y.data, before.size, heads_ * before.size};
    AddSequences(before, lengths, BiasStrides(ctx.Input(kBias), before, total, p), p);
    DispatchFloats(kOp, query.dtype, [&](auto type) {
      using T = decltype(type);
      if (before.batch == 0 || before.steps == 0) return;
      attention::LaunchWork(ctx, kOp, attention::Attention(std::move(p)),
                            [before = std::move(before)] { before.Run<T>(); });
    });
  }

 private:
  // Sizes, and where the new rows are: in three inputs, or in one after the other.
  Preparation Operands(OpContext& ctx, const TensorView& query) const {
    const TensorView key = ctx.Input(kKey), value = ctx.Input(kValue);
    const Shape& q = query.shape;
    GQA_CHECK(q.rank() == 3 && key.present == value.present,
              "expected query [B, S, hidden] with key and value, or without both, got shape ", q);
    const int64_t columns = key ? heads_ : heads_ + 2 * key_heads_;
    GQA_CHECK(q[2] > 0 && q[2] % columns == 0, "expected a hidden size that ", columns, " heads divide, got ", q[2]);
    Preparation p{};
    p.batch = q[0];
    p.steps = q[1];
    p.size = q[2] / columns;
    p.element = BitsOf(query.dtype) / 8;
    p.interleaved = interleaved_;
    GQA_CHECK(p.size <= attention::kMaxHeadSize, "expected a head size up to ", attention::kMaxHeadSize, ", got ",
              p.size);
    p.query = {query.as<const char>(), heads_, q[2]};
    const Shape wanted{p.batch, p.steps, key_heads_ * p.size};
    if (key) {
      GQA_CHECK(key.shape == wanted && value.shape == wanted && key.dtype == query.dtype && value.dtype == query.dtype,
                "expected key and value of query's type and shape ", wanted, ", got ", key.shape, " and ", value.shape);
      p.key = {key.as<const char>(), key_heads_, key_heads_ * p.size};
      p.value = {value.as<const char>(), key_heads_, key_heads_ * p.size};
    } else if (query.data != nullptr) {
      p.key = {p.query.data + heads_ * p.size * p.element, key_heads_, q[2]};
      p.value = {p.key.data + key_heads_ * p.size * p.element, key_heads_, q[2]};
    }
    return p;
  }
  static int64_t ReadTotal(const TensorView& given) {
    const int64_t total = ReadHostInt(kOp, "total_sequence_length", given);
    GQA_CHECK(total >= 0 && total < INT32_MAX, "expected a total_sequence_length from 0 to 2^31 - 2, got ", total);
    return total;
  }
  static std::vector<int64_t> ReadLengths(const TensorView& given, int64_t batch) {
    GQA_CHECK(given.elements() == batch, "expected seqlens_k of ", batch, " elements, got shape ", given.shape);
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < batch; ++b) lengths.push_back(int64_t{given.as<const int32_t>()[b]} + 1);
    return lengths;
  }
  int64_t CheckPast(const Preparation& p, const TensorView& key, const TensorView& value, DType dtype) const {
    GQA_CHECK(key.present == value.present, "expected both past_key and past_value, or none");
    if (!key) return 0;
    const Shape& s = key.shape;
    GQA_CHECK(s.rank() == 4 && s[0] == p.batch && s[1] == key_heads_ && s[3] == p.size && value.shape == s &&
                  key.dtype == dtype && value.dtype == dtype,
              "expected past_key and past_value [", p.batch, ", ", key_heads_, ", rows, ", p.size, "] of ",
              NameOf(dtype), ", got ", s, " and ", value.shape);
    return s[2];
  }
  static TensorView CacheOutput(OpContext& ctx, size_t i, DType dtype, const Shape& shape) {
    TensorView present = ctx.Output(i, dtype, shape);
    if (!present) present = {ctx.Workspace(BytesFor(dtype, shape.Elements())), dtype, true, shape};
    return present;
  }
  void SetRotary(OpContext& ctx, const TensorView& query, Preparation& p) const {
    if (!rotary_) return;
    p.cosines = ctx.Input(kCos);
    p.sines = ctx.Input(kSin);
    const Shape& table = p.cosines.shape;
    GQA_CHECK(p.cosines && p.sines && table.rank() == 2 && table == p.sines.shape && p.cosines.dtype == query.dtype &&
                  p.sines.dtype == query.dtype && table[1] > 0 && 2 * table[1] <= p.size,
              "expected cos_cache and sin_cache [positions, at most ", p.size / 2, "] of query's type, got ", table,
              " and ", p.sines.shape);
    const TensorView positions = ctx.Input(kPositions);
    const Shape wanted{p.batch, p.steps};
    GQA_CHECK(!positions || positions.shape == wanted, "expected position_ids of shape ", wanted, ", got ",
              positions.shape);
    p.given_positions = positions.as<const int64_t>();
    p.positions = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, p.batch * p.steps)));
    const Shape rotated{p.batch, p.steps, heads_, p.size};
    p.rotated_query = {ctx.Workspace(BytesFor(query.dtype, rotated.Elements())), query.dtype, true, rotated};
  }
  void SetSink(OpContext& ctx, Preparation& before, attention::Problem& p) const {
    before.sink = ctx.Input(kSink);
    if (!before.sink && !smooth_) return;
    GQA_CHECK(!before.sink || (before.sink.shape == Shape{heads_} && before.sink.dtype == p.query_dtype),
              "expected head_sink of query's type and shape [", heads_, "], got ", before.sink.shape);
    before.float_sink = static_cast<float*>(ctx.Workspace(static_cast<size_t>(heads_) * sizeof(float)));
    p.sink = before.float_sink;
  }
  // attention_bias [1 or B, 1 or N, S, columns]; returns the stride of the batch.
  int64_t BiasStrides(const TensorView& bias, const Preparation& before, int64_t total, attention::Problem& p) const {
    if (!bias) return 0;
    const Shape& s = bias.shape;
    GQA_CHECK(s.rank() == 4 && (s[0] == 1 || s[0] == before.batch) && (s[1] == 1 || s[1] == heads_) &&
                  s[2] == before.steps && s[3] == total && bias.dtype == p.query_dtype,
              "expected attention_bias of query's type that broadcasts to [", before.batch, ", ", heads_, ", ",
              before.steps, ", ", total, "], got ", s);
    p.bias = {bias.data, s[1] == 1 ? 0 : s[2] * s[3], s[3]};
    p.bias_dtype = bias.dtype;
    return s[0] == 1 ? 0 : s[1] * s[2] * s[3];
  }
  void AddSequences(const Preparation& before, const std::vector<int64_t>& lengths, int64_t bias_stride,
                    attention::Problem& p) const {
    const int64_t cache = key_heads_ * before.cache_rows * before.size;
    for (int64_t b = 0; b < before.batch; ++b) {
      const int64_t past = before.past[static_cast<size_t>(b)];
      attention::Sequence s;
      s.query_rows = s.query_len = before.steps;
      s.key_len = lengths[static_cast<size_t>(b)];
      s.right = causal_ ? past : attention::kUnbounded;
      s.left = window_ > 0 ? past - window_ + 1 : -attention::kUnbounded;
      s.query = b * before.steps * (rotary_ ? heads_ * before.size : before.query.pitch);
      s.key = s.value = b * cache;
      s.output = b * before.steps * heads_ * before.size;
      s.bias = b * bias_stride;
      p.sequences.push_back(s);
    }
  }

  bool causal_, smooth_;
};

std::string WhyNot(const NodeView& node) {
  const auto given = [&](size_t i) { return i < node.inputs.size() && node.inputs[i] != DType::kUndefined; };
  if (given(kKeyScale) || given(kValueScale)) return "GroupQueryAttention with a quantised cache is not implemented";
  if (node.output_used.size() > 3 && node.output_used[3])
    return "GroupQueryAttention that returns output_qk is not implemented";
  if (node.attributes.Int("sliding_window_cache") != 0)
    return "GroupQueryAttention with a sliding cache is not implemented";
  for (size_t i : {kKey, kValue, kPastKey, kPastValue})
    if (given(i) && node.inputs[i] != node.inputs[kQuery])
      return "GroupQueryAttention of several types is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("query", kFloats), OptionalInput("key", kFloats), OptionalInput("value", kFloats),
               OptionalInput("past_key", kFloats), OptionalInput("past_value", kFloats), HostInput("seqlens_k", kInt32),
               HostInput("total_sequence_length", kInt32), OptionalInput("cos_cache", kFloats),
               OptionalInput("sin_cache", kFloats), OptionalInput("position_ids", {DType::kInt64}),
               OptionalInput("attention_bias", kFloats), OptionalInput("head_sink", kFloats),
               OptionalInput("k_scale", {DType::kFloat32}), OptionalInput("v_scale", {DType::kFloat32}),
               OptionalInput("q_norm_weight", kFloats), OptionalInput("k_norm_weight", kFloats)},
    .outputs = {Output("output", kFloats), OptionalOutput("present_key", kFloats),
                OptionalOutput("present_value", kFloats), OptionalOutput("output_qk", kFloats)},
    .attributes = {RequiredInt("num_heads"), RequiredInt("kv_num_heads"), FloatAttribute("scale", 0.0),
                   FloatAttribute("softcap", 0.0), IntAttribute("local_window_size", -1), IntAttribute("do_rotary", 0),
                   IntAttribute("rotary_interleaved", 0), IntAttribute("smooth_softmax", -1), IntAttribute("causal", 1),
                   IntAttribute("sliding_window_cache", 0), IntAttribute("kv_cache_bit_width", 0),
                   IntAttribute("qk_output", 0), FloatAttribute("qk_norm_epsilon", 1e-6),
                   StringAttribute("k_quant_type", "NONE"), StringAttribute("v_quant_type", "NONE")},
    .may_alias = {{kPastKey, 1}, {kPastValue, 2}},
    .make = MakeKernel<GroupQueryKernel>,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
