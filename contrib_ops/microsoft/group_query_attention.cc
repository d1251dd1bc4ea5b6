// GroupQueryAttention: normalises and rotates new queries and keys, appends keys and values to the cache and attends to
// it, by the attention core. An entry of the batch has seqlens_k + 1 tokens, the new ones included. The cache has a row
// for each of them or, with sliding_window_cache, for the last ones (ResidentRows).
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/group_cache.h"
#include "contrib_ops/microsoft/grouped_heads.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/attention/core/scores.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/rotary_task.h"

namespace npu {
namespace {

constexpr const char* kOp = "GroupQueryAttention";
constexpr DTypeSet kInt32{DType::kInt32};

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

constexpr size_t kScores = 3;                             // the output output_qk
constexpr int64_t kBeforeSoftmax = 1, kAfterSoftmax = 2;  // qk_output

// What is done before the attention.
struct Preparation {
  int64_t batch, steps, size, element;
  NewRows query, key, value;
  HeadNorm query_norm, key_norm;
  GroupCache keys, values;
  std::vector<int64_t> tokens;  // that each entry had before
  std::vector<int64_t> kept;    // the rows of the past cache that hold the last of them
  TensorView cosines, sines, rotated_query, rotated_key;
  bool interleaved;
  const int64_t* given_positions;  // null: they count from `tokens` on
  int64_t* positions;
  TensorView sink;
  float* float_sink;

  template <class T>
  void Run() const {
    for (int64_t b = 0; positions != nullptr && b < batch; ++b) {
      for (int64_t i = 0; i < steps; ++i)
        positions[b * steps + i] =
            given_positions == nullptr ? tokens[static_cast<size_t>(b)] + i : given_positions[b * steps + i];
    }
    for (int64_t h = 0; float_sink != nullptr && h < query.heads; ++h)
      float_sink[h] = sink ? ToFloat(sink.as<const T>()[h]) : 0.0f;
    query_norm.Run<T>();
    key_norm.Run<T>();
    for (const GroupCache* cache : {&keys, &values}) {
      cache->form.SetFactors();
      cache->MovePast(kept);
    }
    if (cosines) {
      Rotate<T>(query, rotated_query.as<char>(), Heads::Joined(batch, query.heads, steps, size), false);
      if (rotated_key) {
        Rotate<T>(key, rotated_key.as<char>(), Heads::Joined(batch, key.heads, steps, size), false);
        keys.Append<T>({rotated_key.as<const char>(), key.heads, key.heads * size}, steps, kept);
      } else {
        Rotate<T>(key, keys.rows.as<char>(), Heads::Separate(batch, key.heads, keys.capacity(), size), true);
      }
    } else {
      keys.Append<T>(key, steps, kept);
    }
    values.Append<T>(value, steps, kept);
  }

 private:
  // `append`: behind the rows of each entry of a cache, which has its own number of them.
  template <class T>
  void Rotate(const NewRows& rows, char* to, Heads out, bool append) const {
    for (int64_t b = 0; b < batch; ++b) {
      RotaryTask task{kOp, {}, cosines, sines, {}, {}, {}, 2 * cosines.shape[1], interleaved, nullptr, 0};
      task.x.data = const_cast<char*>(rows.data) + b * steps * rows.pitch * element;
      task.in = {1, rows.heads, steps, size, 0, size, rows.pitch};
      const int64_t skipped = append ? kept[static_cast<size_t>(b)] * out.row_stride : 0;
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
        smooth_(info.attributes.Int("smooth_softmax") == 1),
        sliding_(info.attributes.Bool("sliding_window_cache")),
        key_quantisation_(info.attributes.String("k_quant_type")),
        value_quantisation_(info.attributes.String("v_quant_type")),
        stage_(info.attributes.Int("qk_output") == kAfterSoftmax ? attention::ScoreStage::kWeights
                                                                 : attention::ScoreStage::kVisible) {
    NPU_OP_CHECK(kOp, causal_ || window_ < 0, "expected no local_window_size where causal is 0, got ", window_);
    NPU_OP_CHECK(kOp, !sliding_ || window_ > 0, "expected a local_window_size for sliding_window_cache, got ", window_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(kQuery);
    Preparation before = Operands(ctx, query);
    TakeNorms(ctx, kQueryNorm, kKeyNorm, query.dtype, before.batch * before.steps, before);
    const int64_t total = ReadTotal(ctx.Input(kTotal));
    const std::vector<int64_t> lengths = ReadLengths(ctx.Input(kLengths), before.batch);
    const TensorView past_key = ctx.Input(kPastKey), past_value = ctx.Input(kPastValue);
    before.keys.past = past_key;
    before.values.past = past_value;
    before.keys.form = FormOf(ctx, key_quantisation_, "k_scale", kKeyScale, past_key, query.dtype, before.size);
    before.values.form = FormOf(ctx, value_quantisation_, "v_scale", kValueScale, past_value, query.dtype, before.size);
    const int64_t past_rows = CheckPast(before);
    const Layout layout = LayOut(lengths, past_rows, total, before);
    SetCache(ctx, 1, before.batch, layout, before.keys);
    SetCache(ctx, 2, before.batch, layout, before.values);
    SetRotary(ctx, query, before);

    attention::Problem p = ProblemOf(query.dtype, before.size);
    if (rotary_) {
      p.query = {before.rotated_query.data, before.size, heads_ * before.size};
    } else {
      p.query = {const_cast<char*>(before.query.data), before.size, before.query.pitch};
    }
    p.key = before.keys.Operand();
    p.value = before.values.Operand();
    SetSink(ctx, before, p);
    const TensorView y = ctx.Output(0, query.dtype, {before.batch, before.steps, heads_ * before.size});
    p.output = {y.data, before.size, heads_ * before.size};
    AddSequences(before, lengths, BiasStrides(ctx.Input(kBias), before, total, lengths, p), p);
    const attention::ScoresRequest scores = RequestScores(ctx, before, total, lengths, p);
    DispatchFloats(kOp, query.dtype, [&](auto type) {
      using T = decltype(type);
      if (before.batch == 0 || before.steps == 0) return;
      const auto after = [keys = before.keys, values = before.values, layout] {
        keys.MoveToPresent(layout.first, layout.resident);
        values.MoveToPresent(layout.first, layout.resident);
      };
      auto first = [before = std::move(before), scores] {
        before.Run<T>();
        scores.Run();
      };
      attention::LaunchWork(ctx, kOp, attention::Attention(std::move(p)), std::move(first), after);
    });
  }

 private:
  // Sizes, and where the new rows are: in three inputs, or in one after the other.
  Preparation Operands(OpContext& ctx, const TensorView& query) const {
    const TensorView key = ctx.Input(kKey), value = ctx.Input(kValue);
    const Shape& q = query.shape;
    NPU_OP_CHECK(kOp, q.rank() == 3 && key.present == value.present,
                 "expected query [B, S, hidden] with key and value, or without both, got shape ", q);
    const int64_t columns = key ? heads_ : heads_ + 2 * key_heads_;
    NPU_OP_CHECK(kOp, q[2] > 0 && q[2] % columns == 0, "expected a hidden size that ", columns, " heads divide, got ",
                 q[2]);
    Preparation p{};
    p.batch = q[0];
    p.steps = q[1];
    p.size = q[2] / columns;
    p.element = BitsOf(query.dtype) / 8;
    p.interleaved = interleaved_;
    NPU_OP_CHECK(kOp, p.size <= attention::kMaxHeadSize, "expected a head size up to ", attention::kMaxHeadSize,
                 ", got ", p.size);
    p.query = {query.as<const char>(), heads_, q[2]};
    const Shape wanted{p.batch, p.steps, key_heads_ * p.size};
    if (key) {
      NPU_OP_CHECK(
          kOp, key.shape == wanted && value.shape == wanted && key.dtype == query.dtype && value.dtype == query.dtype,
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
    NPU_OP_CHECK(kOp, total >= 0 && total < INT32_MAX, "expected a total_sequence_length from 0 to 2^31 - 2, got ",
                 total);
    return total;
  }
  static std::vector<int64_t> ReadLengths(const TensorView& given, int64_t batch) {
    NPU_OP_CHECK(kOp, given.elements() == batch, "expected seqlens_k of ", batch, " elements, got shape ", given.shape);
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < batch; ++b) lengths.push_back(int64_t{given.as<const int32_t>()[b]} + 1);
    return lengths;
  }
  // A cache that is absent has the queries' type; WhyNot refuses a quantised one.
  CacheForm FormOf(OpContext& ctx, const std::string& quantisation, const char* name, size_t scale,
                   const TensorView& past, DType dtype, int64_t size) const {
    return CacheForm::Of(kOp, ctx, quantisation, name, ctx.Input(scale), past ? past.dtype : dtype, key_heads_, size);
  }
  int64_t CheckPast(const Preparation& p) const {
    const TensorView &key = p.keys.past, &value = p.values.past;
    NPU_OP_CHECK(kOp, key.present == value.present, "expected both past_key and past_value, or none");
    if (!key) return 0;
    const Shape& s = key.shape;
    const int64_t columns = p.keys.form.stored_columns();
    NPU_OP_CHECK(kOp,
                 s.rank() == 4 && s[0] == p.batch && s[1] == key_heads_ && s[3] == columns && value.shape == s &&
                     value.dtype == key.dtype,
                 "expected past_key and past_value [", p.batch, ", ", key_heads_, ", rows, ", columns,
                 "] of one type, got ", s, " and ", value.shape);
    return s[2];
  }

  // Where the rows of each entry are before and after.
  struct Layout {
    int64_t size = 0;                      // rows of the present cache
    int64_t capacity = 0;                  // rows of what is read: as many, or more, of which a window drops some
    std::vector<int64_t> first, resident;  // the rows that are left, counted in what is read
  };
  Layout LayOut(const std::vector<int64_t>& lengths, int64_t past_rows, int64_t total, Preparation& p) const {
    Layout layout;
    layout.size = sliding_ ? past_rows : std::max(past_rows, total);
    NPU_OP_CHECK(kOp, !sliding_ || layout.size >= window_, "expected a past cache of at least local_window_size, ",
                 window_, ", rows for sliding_window_cache, got ", past_rows);
    const bool first_prompt = p.steps == total;
    int64_t most = 0;
    bool drops = false;
    for (const int64_t length : lengths) {
      const int64_t tokens = first_prompt ? 0 : length - p.steps, added = length - tokens;
      NPU_OP_CHECK(kOp,
                   tokens >= 0 && length >= 1 && added <= p.steps &&
                       (sliding_ || (tokens + p.steps <= layout.size && tokens <= past_rows)),
                   "expected seqlens_k for ", p.steps, " new rows in a cache of ", layout.size, ", got ", length - 1);
      const int64_t kept = ResidentRows(tokens, layout.size);
      p.tokens.push_back(tokens);
      p.kept.push_back(kept);
      layout.resident.push_back(ResidentRows(length, layout.size));
      layout.first.push_back(kept + added - layout.resident.back());
      drops = drops || layout.first.back() > 0;
      most = std::max(most, kept + p.steps);
    }
    layout.capacity = drops || most > layout.size ? most : layout.size;
    return layout;
  }
  // How many of the last tokens a cache of `size` rows holds after `tokens`: all, or, with a window, those that are
  // left where the oldest `size` - window + 1 are dropped whenever it is full.
  int64_t ResidentRows(int64_t tokens, int64_t size) const {
    if (!sliding_ || tokens <= size) return tokens;
    const int64_t at_once = size - window_ + 1;
    return tokens - (tokens - size + at_once - 1) / at_once * at_once;
  }
  void SetCache(OpContext& ctx, size_t i, int64_t batch, const Layout& layout, GroupCache& cache) const {
    const DType dtype = cache.form.dtype;
    Shape shape{batch, key_heads_, layout.size, cache.form.stored_columns()};
    cache.rows = cache.present = ctx.Output(i, dtype, shape);
    if (cache.present && layout.capacity == layout.size) return;
    shape[2] = layout.capacity;
    cache.rows = {ctx.Workspace(BytesFor(dtype, shape.Elements())), dtype, true, shape};
  }
  void SetRotary(OpContext& ctx, const TensorView& query, Preparation& p) const {
    if (!rotary_) return;
    p.cosines = ctx.Input(kCos);
    p.sines = ctx.Input(kSin);
    const Shape& table = p.cosines.shape;
    NPU_OP_CHECK(kOp,
                 p.cosines && p.sines && table.rank() == 2 && table == p.sines.shape &&
                     p.cosines.dtype == query.dtype && p.sines.dtype == query.dtype && table[1] > 0 &&
                     2 * table[1] <= p.size,
                 "expected cos_cache and sin_cache [positions, at most ", p.size / 2, "] of query's type, got ", table,
                 " and ", p.sines.shape);
    const TensorView positions = ctx.Input(kPositions);
    const Shape wanted{p.batch, p.steps};
    NPU_OP_CHECK(kOp, !positions || positions.shape == wanted, "expected position_ids of shape ", wanted, ", got ",
                 positions.shape);
    p.given_positions = positions.as<const int64_t>();
    p.positions = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, p.batch * p.steps)));
    const Shape rotated{p.batch, p.steps, heads_, p.size};
    p.rotated_query = {ctx.Workspace(BytesFor(query.dtype, rotated.Elements())), query.dtype, true, rotated};
    if (!p.keys.form.scale) return;  // keys are rotated into the cache
    const Shape keys{p.batch, p.steps, key_heads_, p.size};
    p.rotated_key = {ctx.Workspace(BytesFor(query.dtype, keys.Elements())), query.dtype, true, keys};
  }
  void SetSink(OpContext& ctx, Preparation& before, attention::Problem& p) const {
    before.sink = ctx.Input(kSink);
    if (!before.sink && !smooth_) return;
    NPU_OP_CHECK(kOp, !before.sink || (before.sink.shape == Shape{heads_} && before.sink.dtype == p.query_dtype),
                 "expected head_sink of query's type and shape [", heads_, "], got ", before.sink.shape);
    before.float_sink = static_cast<float*>(ctx.Workspace(static_cast<size_t>(heads_) * sizeof(float)));
    p.sink = before.float_sink;
  }
  static void CheckColumns(const char* name, int64_t total, const std::vector<int64_t>& lengths) {
    for (const int64_t length : lengths)
      NPU_OP_CHECK(kOp, length <= total, "expected seqlens_k below total_sequence_length, ", total, ", as ", name,
                   " has a column for each token, got ", length - 1);
  }
  // attention_bias [1 or B, 1 or N, S, columns]; returns the stride of the batch.
  int64_t BiasStrides(const TensorView& bias, const Preparation& before, int64_t total,
                      const std::vector<int64_t>& lengths, attention::Problem& p) const {
    if (!bias) return 0;
    CheckColumns("attention_bias", total, lengths);
    const Shape& s = bias.shape;
    NPU_OP_CHECK(kOp,
                 s.rank() == 4 && (s[0] == 1 || s[0] == before.batch) && (s[1] == 1 || s[1] == heads_) &&
                     s[2] == before.steps && s[3] == total && bias.dtype == p.query_dtype,
                 "expected attention_bias of query's type that broadcasts to [", before.batch, ", ", heads_, ", ",
                 before.steps, ", ", total, "], got ", s);
    p.bias = {bias.data, s[1] == 1 ? 0 : s[2] * s[3], s[3]};
    p.bias_dtype = bias.dtype;
    return s[0] == 1 ? 0 : s[1] * s[2] * s[3];
  }
  void AddSequences(const Preparation& before, const std::vector<int64_t>& lengths, int64_t bias_stride,
                    attention::Problem& p) const {
    for (int64_t b = 0; b < before.batch; ++b) {
      const auto index = static_cast<size_t>(b);
      const int64_t kept = before.kept[index], dropped = before.tokens[index] - kept;
      attention::Sequence s;
      s.query_rows = s.query_len = before.steps;
      s.key_len = lengths[index] - dropped;
      s.right = causal_ ? kept : attention::kUnbounded;
      s.left = window_ > 0 ? kept - window_ + 1 : -attention::kUnbounded;
      s.query = b * before.steps * (rotary_ ? heads_ * before.size : before.query.pitch);
      s.key = b * key_heads_ * p.key.head_stride;
      s.value = b * key_heads_ * p.value.head_stride;
      s.output = b * before.steps * heads_ * before.size;
      s.bias = b * bias_stride + dropped;
      p.sequences.push_back(s);
    }
  }

  attention::ScoresRequest RequestScores(OpContext& ctx, const Preparation& before, int64_t total,
                                         const std::vector<int64_t>& lengths, const attention::Problem& p) const {
    const TensorView view = ctx.Output(kScores, p.query_dtype, {before.batch, heads_, before.steps, total});
    if (!view || view.elements() == 0) return {};
    CheckColumns("output_qk", total, lengths);
    return {ctx, attention::Scores(p, stage_, total, view.data)};
  }

  bool causal_, smooth_, sliding_;
  std::string key_quantisation_, value_quantisation_;
  attention::ScoreStage stage_;  // of the scores that are returned, if they are asked for
};

bool IsQuantised(const NodeView& node) {
  return node.attributes.String("k_quant_type") != "NONE" || node.attributes.String("v_quant_type") != "NONE";
}

// Of the types and attributes of a cache.
std::string WhyNotCache(const NodeView& node) {
  const auto type = [&](size_t i) { return i < node.inputs.size() ? node.inputs[i] : DType::kUndefined; };
  const int64_t bits = node.attributes.Int("kv_cache_bit_width");
  const DType cache = type(kPastKey);
  if (!IsQuantised(node)) {
    return bits == 0 && type(kKeyScale) == DType::kUndefined && type(kValueScale) == DType::kUndefined &&
                   (cache == DType::kUndefined || cache == type(kQuery)) && type(kPastValue) == cache
               ? ""
               : "GroupQueryAttention with a quantised cache, and no k_quant_type and v_quant_type, is not implemented";
  }
  for (const char* attribute : {"k_quant_type", "v_quant_type"}) {
    const std::string& quantisation = node.attributes.String(attribute);
    if (quantisation != "PER_TENSOR" && quantisation != "PER_CHANNEL")
      return std::string("GroupQueryAttention with ") + attribute + "=" + quantisation + " is not implemented";
  }
  const bool fits = bits == 4   ? cache == DType::kUInt8
                    : bits == 8 ? cache == DType::kInt8 || cache == DType::kFloat8E4M3FN
                                : false;
  if (!fits || type(kPastValue) != cache)
    return "GroupQueryAttention with a quantised cache that is not of 8 bits, int8 or float8e4m3fn, or of 4, uint8, is "
           "not implemented";
  if (type(kKeyScale) == DType::kUndefined || type(kValueScale) == DType::kUndefined)
    return "GroupQueryAttention with a quantised cache without k_scale and v_scale is not implemented";
  return "";
}

std::string WhyNotScores(const NodeView& node) {
  if (node.output_used.size() <= kScores || !node.output_used[kScores]) return "";
  const int64_t stage = node.attributes.Int("qk_output");
  if (stage != kBeforeSoftmax && stage != kAfterSoftmax)
    return "GroupQueryAttention that returns output_qk with qk_output=" + std::to_string(stage) + " is not implemented";
  if (IsQuantised(node)) return "GroupQueryAttention that returns output_qk with a quantised cache is not implemented";
  if (node.attributes.Int("sliding_window_cache") != 0)
    return "GroupQueryAttention that returns output_qk with sliding_window_cache is not implemented";
  return "";
}

std::string WhyNot(const NodeView& node) {
  if (const std::string reason = WhyNotScores(node); !reason.empty()) return reason;
  for (size_t i : {kKey, kValue})
    if (i < node.inputs.size() && node.inputs[i] != DType::kUndefined && node.inputs[i] != node.inputs[kQuery])
      return "GroupQueryAttention of several types is not implemented";
  return WhyNotCache(node);
}

constexpr DTypeSet kCaches = kFloats | DTypeSet{DType::kInt8, DType::kUInt8, DType::kFloat8E4M3FN};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("query", kFloats), OptionalInput("key", kFloats), OptionalInput("value", kFloats),
               OptionalInput("past_key", kCaches), OptionalInput("past_value", kCaches), HostInput("seqlens_k", kInt32),
               HostInput("total_sequence_length", kInt32), OptionalInput("cos_cache", kFloats),
               OptionalInput("sin_cache", kFloats), OptionalInput("position_ids", {DType::kInt64}),
               OptionalInput("attention_bias", kFloats), OptionalInput("head_sink", kFloats),
               OptionalInput("k_scale", {DType::kFloat32}), OptionalInput("v_scale", {DType::kFloat32}),
               OptionalInput("q_norm_weight", kFloats), OptionalInput("k_norm_weight", kFloats)},
    .outputs = {Output("output", kFloats), OptionalOutput("present_key", kCaches),
                OptionalOutput("present_value", kCaches), OptionalOutput("output_qk", kFloats)},
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
