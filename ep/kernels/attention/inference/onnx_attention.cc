// Attention (ai.onnx 23 to 25) by the attention core: [B, N, S, D] or [B, S, N * D], grouped heads, a softcap, a mask
// of booleans or floats, causal masks and windows aligned to the end of the keys, and a cache that is concatenated here
// or, from version 24 on, was written before. Softmax is computed in float32.
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "ep/kernels/attention/core/appended_rows.h"
#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/bfloat16_operands.h"
#include "ep/kernels/attention/core/layout.h"
#include "ep/kernels/attention/core/scores.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using attention::AppendedRows;
using attention::Axes;
using attention::Form;
using attention::kMaxHeadSize;
using attention::Problem;
using attention::Rows;
using attention::Scores;
using attention::ScoresRequest;
using attention::ScoreStage;
using attention::Sequence;

constexpr const char* kOp = "Attention";
constexpr int64_t kMaskGrain = 65536;
// The core multiplies a bias with log2(e), which must not overflow: a row that finite numbers hide as a whole is the
// mean of its values.
constexpr float kLowestBias = std::numeric_limits<float>::lowest() / 2;

// What is enqueued before the attention.
struct Preparation {
  std::optional<AppendedRows> keys, values;
  const uint8_t* visible = nullptr;  // the mask as it was given
  uint8_t* hidden = nullptr;         // as the core takes it
  TensorView bias = {};              // a mask of floats as it was given
  void* finite_bias = nullptr;       // without finite values that the core takes for infinite ones
  int64_t masked = 0;

  void Run() const {
    if (keys) keys->Run();
    if (values) values->Run();
    ParallelFor(masked, kMaskGrain, [=, this](int64_t begin, int64_t end) {
      for (int64_t i = begin; visible != nullptr && i < end; ++i) hidden[i] = visible[i] == 0;
      if (bias) DispatchFloats(kOp, bias.dtype, [&](auto type) { RaiseLowest<decltype(type)>(begin, end); });
    });
  }

 private:
  template <class T>
  void RaiseLowest(int64_t begin, int64_t end) const {
    const T* from = bias.as<const T>();
    T* to = static_cast<T*>(finite_bias);
    for (int64_t i = begin; i < end; ++i) {
      const float value = ToFloat(from[i]);
      to[i] = value < kLowestBias && std::isfinite(value) ? FromFloat<T>(kLowestBias) : from[i];
    }
  }
};

// A mask [Sq, T], [N, Sq, T] or [B, N, Sq, T], whose leading dimensions broadcast.
struct Mask {
  TensorView tensor;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0, columns = 0;

  Mask(const TensorView& given, const Axes& q, int64_t keys, bool may_be_shorter) : tensor(given) {
    if (!given) return;
    const Shape& shape = given.shape;
    NPU_OP_CHECK(kOp, shape.rank() >= 2 && shape.rank() <= 4, "expected attn_mask of 2 to 4 dimensions, got ", shape);
    columns = shape.back();
    NPU_OP_CHECK(kOp, columns == keys || (may_be_shorter && columns < keys),
                 "expected attn_mask with a column for each of ", keys, " keys, got ", shape);
    const int64_t wanted[] = {q.batch, q.heads, q.rows};
    int64_t* strides[] = {&batch_stride, &head_stride, &row_stride};
    for (int d = shape.rank() - 2, axis = 2; d >= 0; --d, --axis) {
      NPU_OP_CHECK(kOp, shape[d] == 1 || shape[d] == wanted[axis], "expected attn_mask that broadcasts to [", q.batch,
                   ", ", q.heads, ", ", q.rows, ", ", keys, "], got ", shape);
      if (shape[d] != 1) *strides[axis] = shape.Elements(d + 1, shape.rank());
    }
  }
};

Rows RowsOf(const Axes& axes, void* data) { return {data, axes.head_stride, axes.row_stride}; }

class AttentionKernel final : public Kernel {
 public:
  explicit AttentionKernel(const KernelInfo& info)
      : float32_products_(info.float32_products),
        causal_(info.attributes.Bool("is_causal")),
        softcap_(static_cast<float>(info.attributes.Float("softcap"))),
        left_window_(ReadWindow(info, "left_window_size")),
        right_window_(ReadWindow(info, "right_window_size")) {
    const int64_t stage = info.attributes.Int("qk_matmul_output_mode");
    NPU_OP_CHECK(kOp, stage >= 0 && stage <= 3, "expected qk_matmul_output_mode from 0 to 3, got ", stage);
    stage_ = static_cast<ScoreStage>(stage);
    NPU_OP_CHECK(kOp, softcap_ >= 0 && std::isfinite(softcap_), "expected a softcap of 0 or more, got ", softcap_);
    if (info.attributes.Has("scale")) scale_ = info.attributes.Float("scale");
    if (info.attributes.Has("q_num_heads")) query_heads_ = info.attributes.Int("q_num_heads");
    if (info.attributes.Has("kv_num_heads")) key_heads_ = info.attributes.Int("kv_num_heads");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(0), past_key = ctx.Input(4), past_value = ctx.Input(5);
    const bool joined = query.shape.rank() == 3;
    const Form form = joined ? Form::kBSH : Form::kBNSD;
    const Axes q = AxesOf("Q", query, form, query_heads_);
    Axes k = AxesOf("K", ctx.Input(1), form, key_heads_), v = AxesOf("V", ctx.Input(2), form, key_heads_);
    CheckOperands(q, k, v);
    NPU_OP_CHECK(kOp, past_key.present == past_value.present, "expected both past_key and past_value, or none");

    Problem p;
    p.op = kOp;
    p.query_dtype = p.output_dtype = p.key.dtype = p.value.dtype = query.dtype;
    p.heads = q.heads;
    p.key_heads = k.heads;
    p.head_size = q.size;
    p.value_size = v.size;
    p.scale = static_cast<float>(scale_.value_or(1 / std::sqrt(static_cast<double>(q.size))));
    p.softcap = softcap_;
    p.query = RowsOf(q, query.data);
    Preparation before;
    const int64_t past = past_key ? PastRows(past_key, k, past_value, v) : 0;
    static_cast<Rows&>(p.key) = WithPast(ctx, ctx.Input(1), past_key, past, 1, k, before.keys);
    static_cast<Rows&>(p.value) = WithPast(ctx, ctx.Input(2), past_value, past, 2, v, before.values);

    const TensorView lengths = ctx.Input(6);
    const Mask mask(ctx.Input(3), q, k.rows, lengths.present);
    if (mask.tensor) SetMask(ctx, mask, before, p);
    AddSequences(lengths, q, k, v, past, mask, p);

    const TensorView y = ctx.Output(
        0, query.dtype, joined ? Shape{q.batch, q.rows, q.heads * v.size} : Shape{q.batch, q.heads, q.rows, v.size});
    p.output = RowsOf(attention::AxesOf(y.shape, form, q.heads), y.data);
    const ScoresRequest request = RequestScores(ctx, p, mask, q, k);
    const auto prepare = [before, request] {
      before.Run();
      request.Run();
    };
    if (!y || y.elements() == 0) {
      ctx.Launch(kOp, prepare);
      return;
    }
    attention::LaunchRounded(ctx, float32_products_, std::move(p), prepare);
  }

 private:
  // The number of keys beside a query's own that it sees, or kUnbounded.
  static int64_t ReadWindow(const KernelInfo& info, const char* name) {
    const int64_t size = info.attributes.Int(name, -1);
    NPU_OP_CHECK(kOp, size >= -1, "expected ", name, " of -1 (no bound), 0 or more, got ", size);
    return size < 0 ? attention::kUnbounded : std::min(size, attention::kUnbounded);
  }

  static Axes AxesOf(const char* name, const TensorView& t, Form form, const std::optional<int64_t>& heads) {
    NPU_OP_CHECK(kOp, t.shape.rank() == (form == Form::kBSH ? 3 : 4),
                 "expected Q, K and V of 3 or of 4 dimensions, got ", name, " ", t.shape);
    if (form == Form::kBSH) {
      NPU_OP_CHECK(kOp, heads && *heads > 0 && t.shape[2] % *heads == 0,
                   "expected q_num_heads and kv_num_heads that divide the last dimension of ", name, ", got ",
                   heads.value_or(0), " for ", t.shape);
    }
    return attention::AxesOf(t.shape, form, heads.value_or(0));
  }

  static void CheckOperands(const Axes& q, const Axes& k, const Axes& v) {
    NPU_OP_CHECK(
        kOp, k.batch == q.batch && v.batch == q.batch && k.heads == v.heads && k.rows == v.rows && k.size == q.size,
        "expected Q [B, N, Sq, D], K [B, Nkv, T, D] and V [B, Nkv, T, Dv], got heads ", q.heads, ", ", k.heads, ", ",
        v.heads, ", rows ", q.rows, ", ", k.rows, ", ", v.rows, " and sizes ", q.size, ", ", k.size, ", ", v.size);
    NPU_OP_CHECK(kOp, k.heads >= 1 && q.heads % k.heads == 0, "expected the heads of K to divide those of Q, got ",
                 k.heads, " and ", q.heads);
    for (const int64_t size : {q.size, v.size})
      NPU_OP_CHECK(kOp, size >= 1 && size <= kMaxHeadSize, "expected a head size from 1 to ", kMaxHeadSize, ", got ",
                   size);
  }

  static int64_t PastRows(const TensorView& keys, const Axes& k, const TensorView& values, const Axes& v) {
    const auto fits = [](const TensorView& past, const Axes& axes) {
      const Shape& s = past.shape;
      return s.rank() == 4 && s[0] == axes.batch && s[1] == axes.heads && s[3] == axes.size;
    };
    NPU_OP_CHECK(kOp, fits(keys, k) && fits(values, v) && keys.shape[2] == values.shape[2],
                 "expected past_key and past_value [B, Nkv, P, D] like K and V, got ", keys.shape, " and ",
                 values.shape);
    return keys.shape[2];
  }

  // The rows to attend over; `axes` becomes theirs. Output i gets past and new rows, if it is asked for.
  Rows WithPast(OpContext& ctx, const TensorView& added, const TensorView& past, int64_t past_rows, size_t i,
                Axes& axes, std::optional<AppendedRows>& rows) const {
    const Shape shape{axes.batch, axes.heads, past_rows + axes.rows, axes.size};
    const TensorView present = ctx.Output(i, added.dtype, shape);
    NPU_OP_CHECK(kOp, shape[2] < INT32_MAX, "expected fewer than 2^31 - 1 keys, got ", shape[2]);
    if (!past && !present) return RowsOf(axes, added.data);
    void* all = present ? present.data : ctx.Workspace(BytesFor(added.dtype, shape.Elements()));
    rows = {kOp, added.dtype, added.data, axes, nullptr, all, shape[2], past.data, past_rows, past_rows};
    axes = attention::AxesOf(shape, Form::kBNSD, 0);
    return RowsOf(axes, all);
  }

  void SetMask(OpContext& ctx, const Mask& mask, Preparation& before, Problem& p) const {
    if (mask.tensor.dtype != DType::kBool) {
      p.bias = {mask.tensor.data, mask.head_stride, mask.row_stride};
      p.bias_dtype = mask.tensor.dtype;
      if (p.bias_dtype == DType::kFloat16) return;  // none is that low
      before.masked = mask.tensor.elements();
      before.bias = mask.tensor;
      before.finite_bias = ctx.Workspace(mask.tensor.bytes());
      p.bias.data = before.finite_bias;
      return;
    }
    before.masked = mask.tensor.elements();
    before.visible = mask.tensor.as<const uint8_t>();
    before.hidden = static_cast<uint8_t*>(ctx.Workspace(static_cast<size_t>(before.masked)));
    p.mask = before.hidden;
    p.mask_row_stride = mask.row_stride;
    p.mask_head_stride = mask.head_stride;
  }

  // With the mask as it was given.
  ScoresRequest RequestScores(OpContext& ctx, Problem p, const Mask& mask, const Axes& q, const Axes& k) const {
    const TensorView view = ctx.Output(3, p.query_dtype, {q.batch, q.heads, q.rows, k.rows});
    if (!view || view.elements() == 0) return {};
    if (p.bias.data != nullptr) p.bias.data = mask.tensor.data;
    return {ctx, Scores(std::move(p), stage_, k.rows, view.data)};
  }

  void AddSequences(const TensorView& given, const Axes& q, const Axes& k, const Axes& v, int64_t past,
                    const Mask& mask, Problem& p) const {
    const std::vector<int64_t> lengths = given ? ReadHostInts(kOp, "nonpad_kv_seqlen", given) : std::vector<int64_t>();
    NPU_OP_CHECK(kOp, !given || static_cast<int64_t>(lengths.size()) == q.batch, "expected nonpad_kv_seqlen of shape [",
                 q.batch, "], got ", given.shape);
    for (int64_t b = 0; b < q.batch; ++b) {
      Sequence s;
      s.query_rows = s.query_len = q.rows;
      s.key_len = k.rows;
      int64_t offset = past;
      if (given) {
        const int64_t length = lengths[static_cast<size_t>(b)];
        NPU_OP_CHECK(kOp, length >= 0 && length <= (mask.tensor ? mask.columns : k.rows),
                     "expected nonpad_kv_seqlen from 0 to the number of keys, ", mask.tensor ? mask.columns : k.rows,
                     ", got ", length);
        s.key_len = length;
        offset = length - q.rows;
      }
      s.left = offset - left_window_;
      s.right = offset + (causal_ ? 0 : right_window_);
      s.query = b * q.batch_stride;
      s.key = b * k.batch_stride;
      s.value = b * v.batch_stride;
      s.output = b * q.heads * q.rows * v.size;
      s.mask = s.bias = b * mask.batch_stride;
      p.sequences.push_back(s);
    }
  }

  DType float32_products_;
  bool causal_;
  float softcap_;
  ScoreStage stage_;  // of the scores that are returned, if they are asked for
  int64_t left_window_, right_window_;
  std::optional<double> scale_;
  std::optional<int64_t> query_heads_, key_heads_;
};

std::string WhyNot(const NodeView& node) {
  const auto type = [&](size_t i) { return i < node.inputs.size() ? node.inputs[i] : DType::kUndefined; };
  if (type(1) != type(0) || type(2) != type(0)) return "Attention with Q, K and V of several types is not implemented";
  if (node.attributes.Int("softmax_precision", 1) == static_cast<int64_t>(DType::kFloat64))
    return "Attention with a softmax of float64 is not implemented";
  return "";
}

OpDef Definition(int version) {
  constexpr DTypeSet kMasks = kFloats | DTypeSet{DType::kBool};
  OpDef def{
      .type = kOp,
      .since = version,
      .until = version,
      .inputs = {Input("Q", kFloats), Input("K", kFloats), Input("V", kFloats), OptionalInput("attn_mask", kMasks),
                 OptionalInput("past_key", kFloats), OptionalInput("past_value", kFloats)},
      .outputs = {Output("Y", kFloats), OptionalOutput("present_key", kFloats),
                  OptionalOutput("present_value", kFloats), OptionalOutput("qk_matmul_output", kFloats)},
      .attributes = {IntAttribute("is_causal", 0), FloatAttribute("scale"), FloatAttribute("softcap", 0.0),
                     IntAttribute("q_num_heads"), IntAttribute("kv_num_heads"),
                     IntAttribute("qk_matmul_output_mode", 0), IntAttribute("softmax_precision")},
      .make = MakeKernel<AttentionKernel>,
      .unsupported = WhyNot,
  };
  if (version >= 25) {
    def.attributes.push_back(IntAttribute("left_window_size", -1));
    def.attributes.push_back(IntAttribute("right_window_size", -1));
  }
  if (version >= 24) def.inputs.push_back(OptionalHostInput("nonpad_kv_seqlen", {DType::kInt64}));
  return def;
}

NPU_ONNX_KERNEL(Definition(23));
NPU_ONNX_KERNEL(Definition(24));
NPU_ONNX_KERNEL(Definition(25));

}  // namespace
}  // namespace npu
