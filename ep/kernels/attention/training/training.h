// What the forward and the backward pass of the training attention operators share: their arguments, checked and
// turned into a Problem.
#pragma once

#include <string>
#include <vector>

#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/layout.h"

namespace npu::attention {

struct TrainingInputs {
  TensorView query, key, value, pse, padding_mask, atten_mask, prefix, query_ends, key_ends, sink;
};

struct TrainingProblem {
  Problem problem;  // without output and statistics; sequences hold the offsets into both
  Shape output_shape, statistics_shape;
  int64_t weights = 0;  // heads * query length * key length, over all sequences
};

class Training {
 public:
  // `scale` is the attribute's name.
  Training(const char* op, const char* scale, const Attributes& attributes);

  TrainingProblem MakeProblem(const TrainingInputs& inputs) const;

  // The strides of a tensor with the output's shape.
  Rows OutputRows(const TensorView& t) const;
  double keep_prob() const { return keep_prob_; }

 private:
  Axes Operand(const char* name, const TensorView& t, int64_t heads) const;
  void SetSequences(const TrainingInputs& inputs, const Axes& q, const Axes& k, Problem& problem) const;
  std::vector<int64_t> Ends(const char* name, const TensorView& list, int64_t limit) const;
  void SetPattern(const TensorView& prefix, Problem& problem) const;
  void SetMask(const TrainingInputs& inputs, int64_t batch, int64_t rows, int64_t keys, Problem& problem) const;
  void SetBias(const TensorView& pse, int64_t batch, int64_t rows, int64_t keys, Problem& problem) const;

  const char* op_;
  Form form_ = Form::kBSH;
  std::string layout_;
  int64_t heads_ = 1, pre_tokens_ = 0, next_tokens_ = 0, sparse_mode_ = 0;
  double keep_prob_ = 1.0;
  float scale_ = 1.0f;
};

}  // namespace npu::attention
