// Computes one row separately: the engines' fallback when their blocks contain keys that the row does not see and the
// result is NaN. A masked key contributes nothing, whatever its score and value are.
#include <cmath>
#include <vector>

#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

namespace {

constexpr int64_t kKeyStep = 64;

class RowRecomputation {
 public:
  RowRecomputation(const Problem& p, const Item& item, int64_t r)
      : p_(p), item_(item), s_(p.sequences[static_cast<size_t>(item.sequence)]), r_(r), at_(PlaceOf(p, item, r)) {
    const KeyRange keys = KeysOfRow(s_, at_.query);
    begin_ = std::max(keys.begin, item.key_begin);
    end_ = std::max(std::min(keys.end, item.key_end), begin_);
    scores_.resize(static_cast<size_t>(end_ - begin_), kNegativeInfinity);
  }

  void Run(RowState& state) {
    Score();
    state.max = kNegativeInfinity;
    state.sum = 0.0f;
    std::fill_n(state.values, p_.value_size, 0.0f);
    for (const float score : scores_) state.max = std::max(state.max, score);
    if (state.max == kNegativeInfinity && !saw_nan_) return;
    Weigh(state);
    if (std::isnan(state.sum)) {
      std::fill_n(state.values, p_.value_size, state.sum);
    } else {
      SumValues(state.values);
    }
  }

 private:
  bool Hidden(int64_t key) const { return p_.mask != nullptr && MaskOf(p_, s_, at_)[ColumnOf(p_, s_, key)] != 0; }

  void Score() {
    const int64_t size = p_.head_size + p_.rope_size;
    std::vector<float> query(static_cast<size_t>(size)), keys(static_cast<size_t>(size * kKeyStep));
    const float scale = ScoreScale(p_) * kLog2E;
    const ScoreCap cap(p_);
    CopyQuery(p_, item_, r_, query.data());
    const float* a = query.data();
    float bias[kKeyStep];
    for (int64_t first = begin_; first < end_ && !saw_nan_; first += kKeyStep) {
      const int64_t n = std::min(kKeyStep, end_ - first);
      FillBias(p_, item_, r_, first, n, bias);
      CopyKeys(p_, s_, item_.key_head, first, first + n, keys.data(), size);
      for (int64_t j = 0; j < n; ++j) {
        if (Hidden(first + j)) continue;
        const float* b = keys.data() + j * size;
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t d = 0; d < size; ++d) dot += a[d] * b[d];
        const float score = (cap.active() ? cap(dot * scale) : dot * scale) + bias[j];
        scores_[static_cast<size_t>(first - begin_ + j)] = score;
        saw_nan_ = saw_nan_ || std::isnan(score);
      }
    }
  }

  // Turns scores into weights.
  void Weigh(RowState& state) {
    float factors[kKeyStep];
    const float weight_scale = WeightScale(p_);
    for (int64_t first = begin_; first < end_; first += kKeyStep) {
      const int64_t n = std::min(kKeyStep, end_ - first);
      if (p_.dropout.active()) FillDropout(p_, item_, r_, first, n, factors);
      for (int64_t j = 0; j < n; ++j) {
        float& score = scores_[static_cast<size_t>(first - begin_ + j)];
        float weight = std::exp2(score - state.max);
        state.sum += weight;
        if (p_.dropout.active()) weight *= factors[j];
        score = weight_scale == 0.0f ? weight : QuantiseWeight(Broadcast(weight), weight_scale)[0];
      }
    }
    if (saw_nan_) state.sum = std::numeric_limits<float>::quiet_NaN();
  }

  void SumValues(float* sums) const {
    const int64_t size = p_.value_size;
    std::vector<float> values(static_cast<size_t>(size * kKeyStep));
    for (int64_t first = begin_; first < end_; first += kKeyStep) {
      const int64_t n = std::min(kKeyStep, end_ - first);
      CopyRows(p_, s_, Values(p_, s_), item_.key_head, first, first + n, size, values.data(), size);
      for (int64_t j = 0; j < n; ++j) {
        if (Hidden(first + j)) continue;
        const float weight = scores_[static_cast<size_t>(first - begin_ + j)];
        const float* from = values.data() + j * size;
        for (int64_t d = 0; d < size; ++d) sums[d] += weight * from[d];
      }
    }
  }

  const Problem& p_;
  const Item& item_;
  const Sequence& s_;
  const int64_t r_;
  const RowPlace at_;
  int64_t begin_ = 0, end_ = 0;
  std::vector<float> scores_;  // of the keys [begin_, end_), in units of log 2; later their weights
  bool saw_nan_ = false;       // decides the row's result: the remaining keys are skipped
};

}  // namespace

void RecomputeRow(const Problem& p, const Item& item, int64_t r, RowState& state) {
  RowRecomputation(p, item, r).Run(state);
}

}  // namespace npu::attention
