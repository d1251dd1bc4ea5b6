// The backward pass of attention.h: gradients of queries, keys, values, bias and sinks.
//
// Keys are processed in blocks, each with the queries that see it. Weights and dropout are recomputed from the forward
// pass's statistics and generator, so that memory beyond the operands is linear in the sequence lengths: the queries'
// gradients in float32, and one float per row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep/kernels/attention/core/attention.h"

namespace npu::attention {

struct GradientProblem {
  // The forward pass's problem, its output included. lse, or row_max and row_sum, are read (a sink needs the latter);
  // no pages or rope parts.
  Problem forward;
  Rows output_gradient;  // laid out like the output
  // Laid out like query, key and value; key_elements and value_elements are the numbers of elements to write.
  Rows query, key, value;
  int64_t key_elements = 0, value_elements = 0;
  void* bias = nullptr;  // like the bias, or null
  int64_t bias_elements = 0;
  float* sink = nullptr;  // [heads], or null
};

class Gradient {
 public:
  explicit Gradient(GradientProblem problem);

  size_t WorkspaceBytes() const { return workspace_bytes_; }
  // Called inside the launch. `workspace` is 64-byte aligned.
  void Run(void* workspace) const;

 private:
  struct Buffers;  // of one launch, within the workspace

  template <class T>
  void RunAs(void* workspace) const;
  template <class T>
  void ForKeyHead(const Buffers& buffers, size_t sequence, int64_t key_head, int64_t part, void* scratch) const;
  template <class T>
  void SumRows(const Buffers& buffers) const;
  template <class T>
  void WriteQueries(const Buffers& buffers) const;
  void SumSinks(const Buffers& buffers) const;
  // Rows of all heads before those of the sequence's key head; rows of a group are ordered as in an Item.
  int64_t FirstRow(size_t sequence, int64_t key_head) const;

  GradientProblem problem_;
  std::vector<int64_t> first_rows_;  // per sequence
  int64_t rows_ = 0, row_size_ = 0;  // of all queries' gradients; row_size_ is padded to whole vectors
  int64_t threads_ = 1, parts_ = 1;  // parts divide the key blocks of a key head
  size_t scratch_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace npu::attention
