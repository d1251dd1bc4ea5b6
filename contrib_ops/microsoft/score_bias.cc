#include "contrib_ops/microsoft/score_bias.h"

#include <algorithm>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"

namespace npu {

ScoreBias::ScoreBias(const char* op, const char* mask_name, const TensorView& mask, const TensorView& bias,
                     const ScoreShape& scores, float hidden)
    : mask_(mask), bias_(bias), scores_(scores), hidden_(hidden) {
  if (mask) CheckMask(op, mask_name);
  if (bias) CheckBias(op, bias);
}

void ScoreBias::CheckMask(const char* op, const char* name) {
  const Shape& s = mask_.shape;
  const auto& [batch, heads, rows, keys] = scores_;
  const bool whole = s.rank() == 2 && s[0] == batch && s[1] == keys;
  if (s.rank() == 1 && (s[0] == batch || s[0] == 3 * batch + 2)) {
    form_ = Form::kLengths;
  } else if (s.rank() == 1 && s[0] == 2 * batch) {
    form_ = Form::kEndsAndStarts;
  } else if (whole) {
    form_ = Form::kKeys;
  } else if (s.rank() == 2 && s[1] == 1 && (s[0] == 1 || s[0] == batch)) {
    form_ = Form::kNone;
  } else if (s.rank() == 3 && s[0] == batch && s[1] == rows && s[2] == keys) {
    form_ = Form::kRows;
  } else {
    NPU_OP_CHECK(op, s.rank() == 4 && s[0] == batch && s[1] == 1 && s[2] == s[3] && s[3] >= keys && keys >= rows,
                 "expected ", name, " of shape [", batch, "], [", 2 * batch, "], [", 3 * batch + 2, "], [", batch, ", ",
                 keys, "], [", batch, ", ", rows, ", ", keys, "] or [", batch, ", 1, M, M] with M of at least ", keys,
                 ", got ", s);
    form_ = Form::kSquare;
  }
}

void ScoreBias::CheckBias(const char* op, const TensorView& bias) {
  const Shape& s = bias.shape;
  NPU_OP_CHECK(op,
               s.rank() == 4 && (s[0] == 1 || s[0] == scores_.batch) && (s[1] == 1 || s[1] == scores_.heads) &&
                   s[2] == scores_.rows && s[3] == scores_.keys,
               "expected attention_bias that broadcasts along the first two dimensions to [", scores_.batch, ", ",
               scores_.heads, ", ", scores_.rows, ", ", scores_.keys, "], got ", s);
}

void ScoreBias::Allocate(OpContext& ctx, attention::Problem& problem) {
  const auto& [batch, heads, rows, keys] = scores_;
  if (form_ == Form::kNone) {
    if (!bias_) return;
    const Shape& s = bias_.shape;
    problem.bias = {bias_.data, s[1] == 1 ? 0 : rows * keys, keys};
    problem.bias_dtype = bias_.dtype;
    batch_stride_ = s[0] == 1 ? 0 : s[1] * rows * keys;
    return;
  }
  sum_heads_ = bias_ ? bias_.shape[1] : 1;
  sum_rows_ = bias_ || form_ == Form::kRows || form_ == Form::kSquare ? rows : 1;
  batch_stride_ = sum_heads_ * sum_rows_ * keys;
  const Shape sums{batch, sum_heads_, sum_rows_, keys};
  sums_ = static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, sums.Elements())));
  problem.bias = {sums_, sum_heads_ == 1 ? 0 : sum_rows_ * keys, sum_rows_ == 1 ? 0 : keys};
  problem.bias_dtype = DType::kFloat32;
}

void ScoreBias::Run() const {
  if (sums_ == nullptr) return;
  const int64_t keys = scores_.keys;
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, keys));
  ParallelFor(scores_.batch * sum_heads_ * sum_rows_, grain, [=, this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % sum_rows_, head = i / sum_rows_ % sum_heads_, entry = i / sum_rows_ / sum_heads_;
      float* to = sums_ + i * keys;
      if (bias_) {
        const int64_t from = (bias_.shape[0] == 1 ? 0 : entry) * sum_heads_ + head;
        DispatchFloats("attention_bias", bias_.dtype, [&](auto type) {
          ToFloat(bias_.as<const decltype(type)>() + (from * sum_rows_ + row) * keys, to, keys);
        });
      } else {
        std::fill_n(to, keys, 0.0f);
      }
      AddMask(entry, row, to);
    }
  });
}

void ScoreBias::AddMask(int64_t entry, int64_t row, float* to) const {
  const auto* mask = mask_.as<const int32_t>();
  const auto& [batch, heads, rows, keys] = scores_;
  if (form_ == Form::kLengths || form_ == Form::kEndsAndStarts) {
    const int64_t start = form_ == Form::kLengths ? 0 : std::clamp<int64_t>(ReadOnce(mask + batch + entry), 0, keys);
    const int64_t end = std::clamp<int64_t>(ReadOnce(mask + entry), 0, keys);
    for (int64_t j = 0; j < start; ++j) to[j] += hidden_;
    for (int64_t j = std::max(start, end); j < keys; ++j) to[j] += hidden_;
    return;
  }
  const int32_t* visible = mask + entry * keys;
  if (form_ == Form::kRows) visible = mask + (entry * rows + row) * keys;
  if (form_ == Form::kSquare) {
    const int64_t size = mask_.shape[3];
    visible = mask + (entry * size + keys - rows + row) * size;
  }
  for (int64_t j = 0; j < keys; ++j) to[j] += visible[j] > 0 ? 0.0f : hidden_;
}

}  // namespace npu
