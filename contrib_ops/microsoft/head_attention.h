// Attention of queries, keys and values that are given as heads, with a bias each, a cache, a mask and a bias of the
// scores: what Attention, MultiHeadAttention and QAttention have in common. Computed by the attention core.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ep/kernels/attention/core/layout.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// Rows of heads in device memory, with a bias [heads, size] of their type, which may be null.
struct HeadRows {
  const void* data = nullptr;
  attention::Axes axes;
  const void* bias = nullptr;

  // Rows of `heads` in the columns [first, first + heads * size) of a tensor [batch, rows, pitch] or [rows, pitch].
  static HeadRows Columns(const TensorView& matrix, int64_t heads, int64_t size, int64_t first);
};

// The keys or the values of earlier steps, [B, N, capacity, D], and where the node returns all of them.
struct HeadCache {
  const void* past = nullptr;
  void* present = nullptr;  // null: not returned
};

// Sequences without padding, one after the other in a batch of one: sequence b has the rows from starts[b] to
// starts[b + 1], at most `longest`.
struct RaggedRows {
  std::vector<int64_t> starts;
  int64_t longest = 0;

  int64_t sequences() const { return static_cast<int64_t>(starts.size()) - 1; }
};

// Reads cumulative_sequence_length of `count` rows and the shape of token_offset, [sequences, longest].
RaggedRows ReadRaggedRows(const char* op, const TensorView& cumulative, const Shape& token_offset, int64_t count);

struct HeadAttention {
  const char* op;
  DType dtype;
  DType float32_products = DType::kFloat32;  // see KernelInfo
  HeadRows query = {}, key = {}, value = {};
  HeadCache keys = {}, values = {};
  int64_t past_rows = 0;      // rows of the past that count
  int64_t past_capacity = 0;  // rows that it has
  int64_t capacity = 0;       // rows of present: those of the past and the new ones, or more
  double scale = 0.0;         // 0: 1 / sqrt(head size)
  bool causal = false;        // row i sees the past and the new keys up to i, the last one all, as in onnxruntime
  const char* mask_name = "mask_index";
  TensorView mask = {}, bias = {};  // see ScoreBias
  float hidden = -10000.0f;
  std::optional<RaggedRows> ragged = {};  // the scores have the shape [sequences, N, longest, longest]

  // Checks mask and bias, makes output 0, [B, S, N * Dv] or, of ragged rows, [S, N * Dv], and launches.
  void Launch(OpContext& ctx) const;
};

// Checks that `heads` divides a number of columns, and returns the head size, which the core supports.
int64_t HeadSize(const char* op, const char* name, int64_t columns, int64_t heads);

// Reads past_sequence_length: a row of new keys starts there in a cache of `capacity` rows.
int64_t ReadPastLength(const char* op, const TensorView& given, int64_t new_rows, int64_t capacity);

}  // namespace npu
