// Turns the arguments of one call of an inference operator into a Problem.
#pragma once

#include <utility>
#include <vector>

#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/layout.h"
#include "ep/kernels/attention/inference/inference.h"
#include "ep/kernels/op_check.h"

namespace npu::attention {

class InferenceCall {
 public:
  InferenceCall(const InferenceAttributes& attributes, const Layout& layout, InferenceInputs inputs)
      : a_(attributes), layout_(layout), in_(std::move(inputs)) {}

  // Sets everything but the sequences and the outputs.
  Problem MakeProblem();
  // From the current lengths and paddings. Call after MakeProblem.
  std::vector<Sequence> MakeSequences();
  int64_t query_rows() const { return q_.batch * q_.rows; }
  Shape OutputShape() const { return attention::OutputShape(layout_.output, q_, p_.value_size); }
  Shape LseShape() const;

 private:
  // A key or value operand, in a tensor of rows or in pages. Strides are in stored elements, one per eight int4.
  struct Cache : Axes {
    int64_t pages = 0;
    int64_t quant_batch_stride = 0;
  };

  // call.cc
  void CheckTypes();
  void CheckCombination() const;
  void SetOutput();
  DeviceScalar Scalar(const char* name, const TensorView& t) const;

  // operands.cc
  void SetOperands();
  void SetPrefix();
  void SetRope();
  Axes Operand(const char* name, const TensorView& t, int64_t heads) const;
  Cache CacheOperand(const char* name, const TensorView& t, CacheRows& rows) const;
  Axes PagesOperand(const char* name, const TensorView& t, CacheRows& rows) const;
  void SetQuant(bool value, CacheRows& rows, Cache& cache) const;
  void SplitScaledRows(const char* name, CacheRows& rows, Cache& cache) const;
  int64_t HeadSize(const char* name, const TensorView& t, const Axes& axes) const;

  // sequences.cc
  void SetMask();
  void SetBias();
  void CheckBias(int64_t batch, int64_t rows, int64_t keys) const;
  void CheckSides(const std::vector<int64_t>& lengths, const std::vector<int64_t>& key_lengths) const;
  void AddSequence(int64_t entry, int64_t row, int64_t rows, int64_t len, int64_t key_row, int64_t key_len);
  void AddPadded(int64_t entry, int64_t len, int64_t key_len);
  std::vector<int64_t> Lengths(const char* name, const TensorView& list, int64_t batch, int64_t limit) const;
  std::vector<int64_t> PackedLengths(const char* name, const TensorView& list, int64_t count, int64_t limit) const;
  int64_t PaddingSize(const char* name, const TensorView& t) const;
  void CheckList(const char* name, const TensorView& list) const;

  bool packed() const { return IsPacked(layout_.input); }
  bool paged() const { return in_.block_table.present; }
  bool quantised() const {
    return in_.scaled_rows || in_.antiquant_scale || in_.key_antiquant_scale || in_.value_antiquant_scale;
  }
  // The number of keys that a row may attend to, including the prefix.
  int64_t keys() const { return p_.prefix_rows + k_.rows; }

  const InferenceAttributes& a_;
  const Layout& layout_;
  const InferenceInputs in_;
  Problem p_;
  std::vector<Sequence> sequences_;
  Axes q_, query_rope_, o_;
  Cache k_, v_, key_rope_;
  bool decode_ = false;
  bool full_mask_ = false;  // atten_mask says of every row and key whether they go together
  int64_t mask_batch_stride_ = 0, bias_batch_stride_ = 0;
};

}  // namespace npu::attention
