// The scores that attention never stores, for a caller who asks to see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ep/kernels/attention/core/attention.h"

namespace npu::attention {

enum class ScoreStage {
  kScaled,   // scale * Q K^T
  kCapped,   // after the softcap
  kBiased,   // after the bias; -inf where a query does not see a key
  kWeights,  // after the softmax, of which a sink has its share; a row that sees no key is 0
  kVisible,  // as kBiased, but 0 where a query does not see a key
};

// Writes the scores of a Problem of strided rows of floats without prefix, pages or rope columns, whose sequences have
// the same number of queries: to [sequences, heads, queries, keys] of the queries' dtype. Computed in float32.
class Scores {
 public:
  Scores(Problem problem, ScoreStage stage, int64_t keys, void* scores);

  size_t WorkspaceBytes() const;
  // Called inside the launch.
  void Run(void* workspace) const;

 private:
  int64_t RowSize() const;  // of the workspace
  void Finish(const Sequence& sequence, int64_t head, int64_t row, float* values) const;

  Problem problem_;
  ScoreStage stage_;
  int64_t queries_, keys_;
  void* scores_;
};

// Scores that may be asked for beside the output.
class ScoresRequest {
 public:
  ScoresRequest() = default;
  ScoresRequest(OpContext& ctx, Scores scores);

  // Called inside the launch.
  void Run() const;

 private:
  std::optional<Scores> scores_;
  void* workspace_ = nullptr;
};

}  // namespace npu::attention
