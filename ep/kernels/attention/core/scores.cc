#include "ep/kernels/attention/core/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu::attention {

Scores::Scores(Problem problem, ScoreStage stage, int64_t keys, void* scores)
    : problem_(std::move(problem)),
      stage_(stage),
      queries_(problem_.sequences.empty() ? 0 : problem_.sequences[0].query_rows),
      keys_(keys),
      scores_(scores) {}

size_t Scores::WorkspaceBytes() const { return BytesFor(DType::kFloat32, Shape{queries_, RowSize()}.Elements()); }

int64_t Scores::RowSize() const { return problem_.sink == nullptr ? keys_ : keys_ + 1; }

void Scores::Run(void* workspace) const {
  if (queries_ == 0 || keys_ == 0) return;
  const Problem& p = problem_;
  auto* scores = static_cast<float*>(workspace);  // of one head
  char* to = static_cast<char*>(scores_);
  for (const Sequence& s : p.sequences) {
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t element = BitsOf(p.query_dtype) / 8, key_head = head / (p.heads / p.key_heads);
      const auto rows = [&](const Rows& of, int64_t offset, int64_t h, int64_t count) {
        const char* data = static_cast<const char*>(of.data) + (offset + h * of.head_stride) * element;
        return gemm::Matrix{data, count, p.head_size, of.row_stride, 1};
      };
      gemm::Multiply(p.query_dtype, rows(p.query, s.query, head, queries_),
                     rows(p.key, s.key, key_head, keys_).Transposed(), {scores, DType::kFloat32, RowSize()},
                     {.alpha = p.scale});
      DispatchFloats(p.op, p.query_dtype, [&](auto tag) {
        using T = decltype(tag);
        ParallelFor(queries_, RowGrain(keys_), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            float* values = scores + row * RowSize();
            Finish(s, head, row, values);
            FromFloat(values, reinterpret_cast<T*>(to) + row * keys_, keys_);
          }
        });
      });
      to += queries_ * keys_ * element;
    }
  }
}

// From scaled products to the stage.
void Scores::Finish(const Sequence& s, int64_t head, int64_t row, float* values) const {
  const Problem& p = problem_;
  if (stage_ == ScoreStage::kScaled) return;
  if (p.softcap != 0)
    for (int64_t j = 0; j < keys_; ++j) values[j] = p.softcap * std::tanh(values[j] / p.softcap);
  if (stage_ == ScoreStage::kCapped) return;
  const int64_t begin = std::clamp<int64_t>(row + s.left, 0, s.key_len);
  const int64_t end = std::clamp<int64_t>(row + s.right + 1, begin, s.key_len);
  if (p.bias.data != nullptr) {
    DispatchFloats(p.op, p.bias_dtype, [&](auto tag) {
      const auto* bias =
          static_cast<const decltype(tag)*>(p.bias.data) + s.bias + head * p.bias.head_stride + row * p.bias.row_stride;
      for (int64_t j = begin; j < end; ++j) values[j] += ToFloat(bias[j]) * p.bias_scale;
    });
  }
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const float hidden = stage_ == ScoreStage::kVisible ? 0.0f : kHidden;
  const uint8_t* mask =
      p.mask == nullptr ? nullptr : p.mask + s.mask + head * p.mask_head_stride + row * p.mask_row_stride;
  for (int64_t j = begin; mask != nullptr && j < end; ++j) values[j] = mask[j] != 0 ? hidden : values[j];
  std::fill(values, values + begin, hidden);
  std::fill(values + end, values + keys_, hidden);
  if (stage_ != ScoreStage::kWeights) return;
  if (p.sink != nullptr) values[keys_] = p.sink[head];
  if (std::all_of(values, values + RowSize(), [](float v) { return v == kHidden; })) {
    std::fill_n(values, keys_, 0.0f);
  } else {
    SoftmaxRow(values, RowSize());
  }
}

ScoresRequest::ScoresRequest(OpContext& ctx, Scores scores)
    : scores_(std::move(scores)), workspace_(ctx.Workspace(scores_->WorkspaceBytes())) {}

void ScoresRequest::Run() const {
  if (scores_) scores_->Run(workspace_);
}

}  // namespace npu::attention
