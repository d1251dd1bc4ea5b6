// What the attention operators of com.microsoft add to the scores: a mask of integers, as mask_filter_value where a key
// is hidden, plus attention_bias.
#pragma once

#include "ep/kernels/attention/core/attention.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The shape of the scores, [batch, heads, rows, keys].
struct ScoreShape {
  int64_t batch, heads, rows, keys;
};

// The forms of a mask of int32, B entries of S rows that see T keys:
//   [B] or [3 * B + 2]      the numbers of keys, followed by positions that only packed rows need
//   [2 * B]                 the ends of the keys, then their starts
//   [B, T] and [B, S, T]    positive: the key is visible; [B, 1] and [1, 1] hide nothing
//   [B, 1, M, M]            the rows from T - S on and the first T columns of such a mask
class ScoreBias {
 public:
  // Checks `mask` and `bias`, either of which may be absent. `mask_name` is the mask's in errors.
  ScoreBias(const char* op, const char* mask_name, const TensorView& mask, const TensorView& bias,
            const ScoreShape& scores, float hidden);

  // Sets the problem's bias, with scratch memory from `ctx` unless attention_bias alone is all of it.
  void Allocate(OpContext& ctx, attention::Problem& problem);
  int64_t batch_stride() const { return batch_stride_; }
  // In the launch, before the attention.
  void Run() const;

 private:
  enum class Form { kNone, kLengths, kEndsAndStarts, kKeys, kRows, kSquare };

  void CheckMask(const char* op, const char* name);
  void CheckBias(const char* op, const TensorView& bias);
  // Adds to the scores of row `row` of an entry.
  void AddMask(int64_t entry, int64_t row, float* to) const;

  TensorView mask_, bias_;
  ScoreShape scores_;
  float hidden_;
  Form form_ = Form::kNone;
  float* sums_ = nullptr;  // [batch, heads or 1, rows or 1, keys]
  int64_t sum_heads_ = 1, sum_rows_ = 1, batch_stride_ = 0;
};

}  // namespace npu
