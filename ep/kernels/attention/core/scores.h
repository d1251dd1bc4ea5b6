// The scores that attention never stores, for a caller who asks to see them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/kernels/attention/core/attention.h"

namespace npu::attention {

enum class ScoreStage {
  kScaled,   // scale * Q K^T
  kCapped,   // after the softcap
  kBiased,   // after the bias; -inf where a query does not see a key
  kWeights,  // after the softmax; a row that sees no key is 0
};

// Writes the scores of a Problem of strided rows of floats without prefix, pages, rope columns or sinks, whose
// sequences have the same number of queries: to [sequences, heads, queries, keys] of the queries' dtype. Computed in
// float32.
class Scores {
 public:
  Scores(Problem problem, ScoreStage stage, int64_t keys, void* scores);

  size_t WorkspaceBytes() const;
  // Called inside the launch.
  void Run(void* workspace) const;

 private:
  void Finish(const Sequence& sequence, int64_t head, int64_t row, float* values) const;

  Problem problem_;
  ScoreStage stage_;
  int64_t queries_, keys_;
  void* scores_;
};

}  // namespace npu::attention
