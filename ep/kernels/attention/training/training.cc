#include "ep/kernels/attention/training/training.h"

#include <algorithm>
#include <utility>

#include "ep/kernels/op_check.h"

namespace npu::attention {

namespace {

constexpr int64_t kCompressedBias = 1024;  // rows that represent all rows of a bias that depends on j - i alone

struct LayoutName {
  const char* name;
  Form form;
};
constexpr LayoutName kLayouts[] = {
    {"BSH", Form::kBSH}, {"SBH", Form::kSBH}, {"BSND", Form::kBSND}, {"BNSD", Form::kBNSD}, {"TND", Form::kTND}};

// The number of mask rows in modes whose atten_mask only stands for a pattern; 0 for the others.
int64_t PatternRows(int64_t sparse_mode) {
  switch (sparse_mode) {
    case 2:
    case 3:
    case 4:
    case 7:
    case 8:
      return 2048;
    case 6:
      return 3072;
    default:
      return 0;
  }
}

bool HasPrefix(int64_t sparse_mode) { return sparse_mode == 5 || sparse_mode == 6; }

}  // namespace

Training::Training(const char* op, const char* scale, const Attributes& a)
    : op_(op), layout_(a.String("input_layout")) {
  heads_ = a.Int("head_num");
  scale_ = static_cast<float>(a.Float(scale));
  keep_prob_ = static_cast<float>(a.Float("keep_prob"));  // rounded as a node stores it
  pre_tokens_ = std::clamp(a.Int("pre_tockens"), -kUnbounded, kUnbounded);
  next_tokens_ = std::clamp(a.Int("next_tockens"), -kUnbounded, kUnbounded);
  sparse_mode_ = a.Int("sparse_mode");
  const auto* found = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                   [&](const LayoutName& layout) { return layout.name == layout_; });
  NPU_OP_CHECK(op_, found != std::end(kLayouts), "expected input_layout BSH, SBH, BSND, BNSD or TND, got '", layout_,
               "'");
  form_ = found->form;
  NPU_OP_CHECK(op_, heads_ >= 1 && heads_ <= INT32_MAX, "expected head_num in [1, ", INT32_MAX, "], got ", heads_);
  NPU_OP_CHECK(op_, keep_prob_ >= 0.0 && keep_prob_ <= 1.0, "expected keep_prob in [0, 1], got ", keep_prob_);
  NPU_OP_CHECK(op_, sparse_mode_ >= 0 && sparse_mode_ <= 8, "expected sparse_mode in [0, 8], got ", sparse_mode_);
  NPU_OP_CHECK(op_, sparse_mode_ < 7 || IsPacked(form_), "expected input_layout TND with sparse_mode ", sparse_mode_,
               ", got ", layout_);
  NPU_OP_CHECK(op_, sparse_mode_ != 5 || !IsPacked(form_),
               "expected sparse_mode 6 for a prefix in input_layout TND, got 5");
  const int64_t inner_precise = a.Int("inner_precise");
  NPU_OP_CHECK(op_, inner_precise >= 0 && inner_precise <= 2, "expected inner_precise 0, 1 or 2, got ", inner_precise);
  const std::string softmax_layout = a.String("softmax_layout");
  NPU_OP_CHECK(op_, softmax_layout.empty() || softmax_layout == "TND", "expected softmax_layout '' or 'TND', got '",
               softmax_layout, "'");
}

Axes Training::Operand(const char* name, const TensorView& t, int64_t heads) const {
  NPU_OP_CHECK(op_, t.shape.rank() == RankOf(form_), "expected ", name, " of shape ", AxesText(form_),
               " for input_layout ", layout_, ", got ", t.shape);
  if (JoinsHeads(form_)) {
    NPU_OP_CHECK(op_, t.shape[2] % heads == 0, "expected the last axis of ", name, " to be a multiple of its ", heads,
                 " heads, got ", t.shape[2]);
  }
  const Axes a = AxesOf(t.shape, form_, heads);
  NPU_OP_CHECK(op_, a.size >= 1 && a.size <= kMaxHeadSize, "expected a head size from 1 to ", kMaxHeadSize, " in ",
               name, ", got ", a.size);
  return a;
}

Rows Training::OutputRows(const TensorView& t) const {
  const Axes a = AxesOf(t.shape, form_, heads_);
  return {t.data, a.head_stride, a.row_stride};
}

TrainingProblem Training::MakeProblem(const TrainingInputs& in) const {
  NPU_OP_CHECK(op_, in.query && in.key && in.value, "expected the tensors query, key and value");
  NPU_OP_CHECK(op_, !in.padding_mask, "expected no padding_mask, which torch_npu does not support either, got ",
               in.padding_mask.shape);
  NPU_OP_CHECK(op_, in.key.dtype == in.query.dtype && in.value.dtype == in.query.dtype,
               "expected query, key and value of one dtype, got ", NameOf(in.query.dtype), ", ", NameOf(in.key.dtype),
               " and ", NameOf(in.value.dtype));
  const Axes q = Operand("query", in.query, heads_);
  NPU_OP_CHECK(op_, q.heads == heads_, "expected ", heads_, " heads in query, got ", q.heads, " in shape ",
               in.query.shape);
  // When heads and head size share an axis, query's head size determines the number of key heads.
  int64_t key_heads = heads_;
  NPU_OP_CHECK(op_, in.key.shape.rank() == RankOf(form_), "expected key of shape ", AxesText(form_),
               " for input_layout ", layout_, ", got ", in.key.shape);
  if (JoinsHeads(form_)) {
    NPU_OP_CHECK(op_, in.key.shape[2] >= q.size && in.key.shape[2] % q.size == 0,
                 "expected the last axis of key to be a multiple of query's head size ", q.size, ", got shape ",
                 in.key.shape);
    key_heads = in.key.shape[2] / q.size;
  } else {
    key_heads = AxesOf(in.key.shape, form_, heads_).heads;
  }
  NPU_OP_CHECK(op_, key_heads >= 1 && heads_ % key_heads == 0, "expected the heads of key to divide head_num ", heads_,
               ", got ", key_heads);
  const Axes k = Operand("key", in.key, key_heads), v = Operand("value", in.value, key_heads);
  NPU_OP_CHECK(op_, k.size == q.size, "expected key of query's head size ", q.size, ", got ", k.size);
  NPU_OP_CHECK(op_, k.batch == q.batch && v.batch == q.batch, "expected key and value of query's batch size ", q.batch,
               ", got ", k.batch, " and ", v.batch);
  NPU_OP_CHECK(op_, v.heads == k.heads && v.rows == k.rows, "expected value with key's ", k.heads, " heads and ",
               k.rows, " rows, got ", v.heads, " and ", v.rows);
  NPU_OP_CHECK(op_, k.rows < INT32_MAX, "expected a key sequence shorter than 2^31 - 1, got ", k.rows);

  TrainingProblem made;
  made.output_shape = OutputShape(form_, q, v.size);
  made.statistics_shape =
      IsPacked(form_) ? Shape{q.rows, heads_, kStatisticsWidth} : Shape{q.batch, heads_, q.rows, kStatisticsWidth};
  made.statistics_shape.Elements();
  Problem& p = made.problem;
  p.op = op_;
  p.query_dtype = p.output_dtype = p.bias_dtype = in.query.dtype;
  p.heads = heads_;
  p.key_heads = key_heads;
  p.head_size = q.size;
  p.value_size = v.size;
  p.scale = scale_;
  p.query = {in.query.data, q.head_stride, q.row_stride};
  static_cast<Rows&>(p.key) = {in.key.data, k.head_stride, k.row_stride};
  static_cast<Rows&>(p.value) = {in.value.data, v.head_stride, v.row_stride};
  p.key.dtype = p.value.dtype = in.query.dtype;
  p.lse_head_stride = kStatisticsWidth * (IsPacked(form_) ? 1 : q.rows);
  p.lse_row_stride = kStatisticsWidth * (IsPacked(form_) ? heads_ : 1);
  SetSequences(in, q, k, p);
  const Axes o = AxesOf(made.output_shape, form_, heads_);
  int64_t rows = q.rows, keys = k.rows;  // the required size of a mask
  if (IsPacked(form_)) rows = keys = 0;
  for (Sequence& s : p.sequences) {
    // Until here a sequence holds its batch entry and its first rows instead of offsets.
    const int64_t entry = IsPacked(form_) ? 0 : s.page_row, row = s.query, key_row = s.key;
    s.query = entry * q.batch_stride + row * q.row_stride;
    s.key = entry * k.batch_stride + key_row * k.row_stride;
    s.value = entry * v.batch_stride + key_row * v.row_stride;
    s.output = entry * o.batch_stride + row * o.row_stride;
    s.lse = IsPacked(form_) ? row * p.lse_row_stride : entry * heads_ * p.lse_head_stride;
    s.left = -kUnbounded;
    s.right = kUnbounded;
    s.dropout = made.weights;
    const int64_t more = Shape{heads_, s.query_rows, s.key_len}.Elements();
    NPU_OP_CHECK(op_, more <= INT64_MAX - made.weights, "expected fewer than 2^63 weights");
    made.weights += more;
    if (IsPacked(form_) && s.query_len > 0) {
      rows = std::max(rows, s.query_len);
      keys = std::max(keys, s.key_len);
    }
  }
  const int64_t batch = IsPacked(form_) ? in.query_ends.shape[0] : q.batch;
  if (in.atten_mask) SetPattern(in.prefix, p);
  SetMask(in, batch, rows, keys, p);
  SetBias(in.pse, batch, rows, keys, p);
  if (in.sink) {
    NPU_OP_CHECK(op_, in.sink.dtype == DType::kFloat32 && in.sink.shape == Shape{heads_},
                 "expected sink float32 of shape [", heads_, "], got ", NameOf(in.sink.dtype), " ", in.sink.shape);
    p.sink = in.sink.as<const float>();
  }
  return made;
}

std::vector<int64_t> Training::Ends(const char* name, const TensorView& list, int64_t limit) const {
  NPU_OP_CHECK(op_, list.dtype == DType::kInt64 && list.shape.rank() == 1, "expected ", name,
               " as a list of integers, got ", NameOf(list.dtype), " ", list.shape);
  std::vector<int64_t> ends(list.as<const int64_t>(), list.as<const int64_t>() + list.shape[0]);
  while (!ends.empty() && ends.back() == 0) ends.pop_back();  // unused entries
  int64_t begin = 0;
  for (const int64_t end : ends) {
    NPU_OP_CHECK(op_, end >= begin && end <= limit, "expected ", name, " to ascend within [0, ", limit, "], got ", end,
                 " behind ", begin);
    begin = end;
  }
  ends.resize(static_cast<size_t>(list.shape[0]), begin);
  return ends;
}

// Stores row indices in `query` and `key`, and the batch entry in `page_row`.
void Training::SetSequences(const TrainingInputs& in, const Axes& q, const Axes& k, Problem& problem) const {
  if (!IsPacked(form_)) {
    for (int64_t b = 0; b < q.batch; ++b) {
      Sequence s;
      s.page_row = b;
      s.query_rows = s.query_len = q.rows;
      s.key_len = k.rows;
      problem.sequences.push_back(s);
    }
    return;
  }
  NPU_OP_CHECK(op_, in.query_ends && in.key_ends, "expected actual_seq_qlen and actual_seq_kvlen for input_layout TND");
  const std::vector<int64_t> query_ends = Ends("actual_seq_qlen", in.query_ends, q.rows);
  const std::vector<int64_t> key_ends = Ends("actual_seq_kvlen", in.key_ends, k.rows);
  NPU_OP_CHECK(op_, query_ends.size() == key_ends.size(), "expected actual_seq_kvlen with ", query_ends.size(),
               " entries, got ", key_ends.size());
  int64_t row = 0, key_row = 0;
  for (size_t b = 0; b < query_ends.size(); ++b) {
    Sequence s;
    s.page_row = static_cast<int64_t>(b);
    s.query_rows = s.query_len = query_ends[b] - row;
    s.key_len = key_ends[b] - key_row;
    s.query = row;
    s.key = key_row;
    row = query_ends[b];
    key_row = key_ends[b];
    problem.sequences.push_back(s);
  }
  if (row < q.rows) {  // rows that belong to no sequence
    Sequence rest;
    rest.page_row = static_cast<int64_t>(query_ends.size());
    rest.query = row;
    rest.query_rows = q.rows - row;
    problem.sequences.push_back(rest);
  }
}

void Training::SetPattern(const TensorView& prefix, Problem& problem) const {
  const auto uses = [](const Sequence& s) { return s.query_len > 0 && s.key_len > 0; };
  if (HasPrefix(sparse_mode_)) {
    NPU_OP_CHECK(op_, prefix && prefix.dtype == DType::kInt64 && prefix.shape.rank() == 1,
                 "expected prefix as a list of integers with sparse_mode ", sparse_mode_, ", got ",
                 prefix ? prefix.shape.ToString() : "none");
  }
  const auto first = std::find_if(problem.sequences.begin(), problem.sequences.end(), uses);
  const auto last = std::find_if(problem.sequences.rbegin(), problem.sequences.rend(), uses);
  for (Sequence& s : problem.sequences) {
    const int64_t delta = s.key_len - s.query_len;
    const auto band = [&](int64_t origin) {
      s.left = origin - pre_tokens_;
      s.right = origin + next_tokens_;
    };
    switch (sparse_mode_) {
      case 0:
        band(0);
        break;
      case 2:
        s.right = 0;
        break;
      case 3:
        s.right = delta;
        break;
      case 4:
        band(delta);
        break;
      case 5:
      case 6:
        s.right = delta;
        if (s.query_len == 0) break;
        NPU_OP_CHECK(op_, s.page_row < prefix.shape[0], "expected prefix with an entry for every sequence, got ",
                     prefix.shape[0]);
        s.prefix = prefix.as<const int64_t>()[s.page_row];
        NPU_OP_CHECK(op_, s.prefix >= 0 && s.prefix <= s.key_len, "expected prefix in [0, ", s.key_len, "], got ",
                     s.prefix, " for batch entry ", s.page_row);
        break;
      case 7:
        s.right = delta;
        if (last != problem.sequences.rend() && &s == &*last) band(delta);
        break;
      case 8:
        s.right = 0;
        if (first != problem.sequences.end() && &s == &*first) band(delta);
        break;
      default:
        break;
    }
  }
}

void Training::SetMask(const TrainingInputs& in, int64_t batch, int64_t rows, int64_t keys, Problem& problem) const {
  const TensorView& mask = in.atten_mask;
  if (!mask) return;
  NPU_OP_CHECK(op_, BitsOf(mask.dtype) == 8, "expected atten_mask as bool or uint8, got ", NameOf(mask.dtype));
  const Shape& shape = mask.shape;
  const int rank = shape.rank();
  if (const int64_t pattern_rows = PatternRows(sparse_mode_); pattern_rows != 0) {
    NPU_OP_CHECK(op_,
                 rank >= 2 && rank <= 4 && shape[rank - 2] == pattern_rows && shape[rank - 1] == 2048 &&
                     shape.Elements(0, rank - 2) == 1,
                 "expected the [", pattern_rows, ", 2048] atten_mask with sparse_mode ", sparse_mode_, ", got ", shape);
    return;
  }
  if (IsPacked(form_)) {
    NPU_OP_CHECK(op_, rank == 2 && shape[0] >= rows && shape[1] >= keys, "expected atten_mask of shape [>= ", rows,
                 ", >= ", keys, "] for input_layout TND, got ", shape);
  } else {
    const bool fits = (rank == 2 || rank == 4) && shape[rank - 2] == rows && shape[rank - 1] == keys &&
                      (rank == 2 || ((shape[0] == 1 || shape[0] == batch) && (shape[1] == 1 || shape[1] == heads_)));
    NPU_OP_CHECK(op_, fits, "expected atten_mask of shape [", rows, ", ", keys, "] or [1 or ", batch, ", 1 or ", heads_,
                 ", ", rows, ", ", keys, "], got ", shape);
    const int64_t batch_stride = rank == 4 && shape[0] > 1 ? shape.Elements(1, 4) : 0;
    if (rank == 4 && shape[1] > 1) problem.mask_head_stride = shape.Elements(2, 4);
    for (Sequence& s : problem.sequences) s.mask = s.page_row * batch_stride;
  }
  problem.mask = mask.as<const uint8_t>();
  problem.mask_row_stride = shape.back();
}

void Training::SetBias(const TensorView& pse, int64_t batch, int64_t rows, int64_t keys, Problem& problem) const {
  if (!pse) return;
  const Shape& shape = pse.shape;
  NPU_OP_CHECK(op_, sparse_mode_ < 7, "expected no pse with sparse_mode ", sparse_mode_);
  NPU_OP_CHECK(op_, pse.dtype == problem.bias_dtype, "expected pse of query's dtype ", NameOf(problem.bias_dtype),
               ", got ", NameOf(pse.dtype));
  const bool packed = IsPacked(form_);
  const bool compressed =
      !packed && shape.rank() == 4 && shape[2] == kCompressedBias && rows > kCompressedBias && rows == keys;
  const bool fits = shape.rank() == 4 && (shape[0] == 1 || shape[0] == batch) && shape[1] == heads_ &&
                    (shape[2] == 1 || compressed || (packed ? shape[2] >= rows : shape[2] == rows)) &&
                    (packed ? shape[3] >= keys : shape[3] == keys);
  const char* least = packed ? ">= " : "";
  NPU_OP_CHECK(op_, fits, "expected pse of shape [1 or ", batch, ", ", heads_, ", 1 or ", least, rows, ", ", least,
               keys, "], got ", shape);
  problem.bias = {pse.data, shape.Elements(2, 4), shape[2] == 1 ? 0 : shape[3]};
  problem.bias_scale = problem.scale;  // the bias is scaled, too
  if (compressed) problem.bias_first_row = rows - kCompressedBias;
  const int64_t batch_stride = shape[0] > 1 ? shape.Elements(1, 4) : 0;
  for (Sequence& s : problem.sequences) s.bias = s.query_len > 0 ? s.page_row * batch_stride : 0;
}

}  // namespace npu::attention
