// softmax(cap(scale * Q K^T) + bias) V, the core that the attention operators share. An operator checks its arguments,
// describes in a Problem where its rows are stored and which keys they see, and launches Attention::Run.
//
// Flash attention: keys are processed in blocks with a running maximum and sum, so that the memory beyond the operands
// is bounded by the threads' blocks and does not grow with queries times keys. Scores, sums and outputs are float32. A
// row that sees no key (all masked, or beyond its sequence's length) has output 0 and log-sum-exp -inf.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep/kernels/attention/core/dropout.h"
#include "ep/runtime/kernel_api.h"

namespace npu::attention {

// The maximum head size of operators whose caches are floats.
inline constexpr int64_t kMaxHeadSize = 768;

// The rows of one operand: element offsets come from the Sequence, strides from here, both in elements.
struct Rows {
  void* data = nullptr;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

// How the integers, or floats of 8 bits, of a cache are dequantised: (x + offset) * scale, with one scale per tensor,
// head, column, row or any combination of these. Computed in `dtype`, i.e. rounded after each step if that is a 16-bit
// float.
struct AntiQuant {
  const void* scale = nullptr;   // null: the cache is not quantised
  const void* offset = nullptr;  // null: 0
  DType dtype = DType::kUndefined;
  int64_t head_stride = 0, row_stride = 0, column_stride = 0;
  int64_t page_stride = 0;  // of scales stored in pages like the rows; otherwise 0
};

// The rows of keys or values: strided, starting at the Sequence's offset, or in pages.
struct CacheRows : Rows {
  // Integers of 4 bits are in int32, eight each, or in uint8, two each and 8 more than they are; the first is in the
  // lowest bits.
  DType dtype = DType::kUndefined;
  int64_t page_stride = 0;
  // If nonzero, rows are split into pieces of `chunk` elements, chunk_stride apart.
  int64_t chunk = 0, chunk_stride = 0;
  AntiQuant quant;
  Rows prefix;  // rows that precede every sequence's own; Problem.prefix_rows of them
};

// A cache in pages: row j of sequence b is in page table[b * table_stride + j / page_rows], slot j % page_rows. The
// table is device memory, so its entries are checked when the kernel runs.
struct PageTable {
  const int32_t* table = nullptr;
  int64_t table_stride = 0;
  int64_t page_rows = 0;
  int64_t page_count = 0;
};

// A scalar in device memory, read when the kernel runs. A 64-bit integer holds the bits of a float.
struct DeviceScalar {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;
};

// One batch entry.
struct Sequence {
  int64_t query_rows = 0;  // rows of output to write
  int64_t query_len = 0;   // of these, the rows that see any keys
  int64_t key_len = 0;     // including the prefix
  // Row i sees keys [i + left, i + right], clamped to [0, key_len).
  int64_t left = 0, right = 0;
  int64_t prefix = 0;  // every row sees the keys before this one
  // Columns of mask and bias between those of Problem.prefix_rows and those of the sequence's own keys.
  int64_t column_gap = 0;
  // Element offsets of row 0 of head 0.
  int64_t query = 0, key = 0, value = 0, output = 0, query_rope = 0, key_rope = 0;
  int64_t mask = 0, bias = 0, lse = 0;
  int64_t key_quant = 0, value_quant = 0;  // likewise, of the scales
  int64_t dropout = 0;                     // index of the first weight, of heads * query_rows * key_len in this order
  int64_t page_row = 0;                    // row of the page table
};

// The value of `left` or `right` if a sequence has no such bound.
inline constexpr int64_t kUnbounded = int64_t{1} << 60;

// How many times the training operators repeat a row's maximum and sum.
inline constexpr int64_t kStatisticsWidth = 8;

struct Problem {
  const char* op = "";  // for errors found when the kernel runs
  // Query and key have one dtype, or key and value are integers; bias is a float.
  DType query_dtype = DType::kFloat32, output_dtype = DType::kFloat32, bias_dtype = DType::kFloat32;
  int64_t heads = 1, key_heads = 1;  // head h reads key head h / (heads / key_heads)
  int64_t head_size = 0, value_size = 0;
  int64_t rope_size = 0;  // extra columns of queries and keys, in tensors of their own
  float scale = 1.0f;
  float softcap = 0.0f;  // nonzero: scaled scores become softcap * tanh(score / softcap), before mask and bias

  Rows query, query_rope, output;
  CacheRows key, value, key_rope;
  int64_t prefix_rows = 0;  // keys that precede those of every sequence
  PageTable pages;          // without a table, rows are strided

  // Nonzero: masked. Row i of a sequence starts at mask + sequence.mask + i * mask_row_stride and has key_len entries.
  const uint8_t* mask = nullptr;
  int64_t mask_row_stride = 0, mask_head_stride = 0;
  Rows bias;  // added after scaling, times bias_scale; null data: none
  float bias_scale = 1.0f;
  // Only the last rows have a bias: row i < bias_first_row uses the last row's, shifted so that j - i is the same.
  int64_t bias_first_row = 0;
  const float* sink = nullptr;  // per head, a score that counts in the sum and has no value
  Dropout dropout;              // of weights, after their sum is computed

  float* lse = nullptr;
  float *row_max = nullptr, *row_sum = nullptr;  // in natural units, kStatisticsWidth times each; strides of lse
  int64_t lse_head_stride = 0, lse_row_stride = 0;

  // Integer queries, keys and values. Scores are multiplied by score_scale; weights 2^(score - maximum) by weight_scale
  // and rounded to int8 (relative to the running maximum); results by value_scale.
  DeviceScalar score_scale, weight_scale, value_scale;
  // int8 output: round(x * scale + offset), with one scale in all or one per head and column.
  const void *output_scale = nullptr, *output_offset = nullptr;
  DType output_scale_dtype = DType::kUndefined;
  bool output_scale_per_column = false;

  std::vector<Sequence> sequences;
};

// The work that a thread takes at a time: rows of the group of query heads that share a key head, against a range of
// keys. Row r of a group is query r / group of its head r % group.
struct Item {
  int32_t sequence = 0, key_head = 0;
  int64_t row_begin = 0;
  int32_t rows = 0;
  int32_t parts = 1;  // the number of items that share these rows and split the keys; 0 on all but the first
  int64_t key_begin = 0, key_end = 0;
  int64_t partial = -1;  // index of the first row of partial results; -1: the item finishes its rows
};

class LinesAhead;

class Attention {
 public:
  // Compute an item. `ahead`, if there is one, is prefetched instead of the item's own later rows, which are cached.
  using NarrowFunction = void (*)(const Problem&, const Item&, LinesAhead* ahead, float* partials, void* scratch);
  using PanelFunction = void (*)(const Problem&, const Item&, float* partials, void* scratch);

  // Plans the work for NumThreads(). The caller has checked shapes and lengths.
  explicit Attention(Problem problem);

  size_t WorkspaceBytes() const { return workspace_bytes_; }
  // An upper bound on what sequences with `query_rows` query rows in total need, whatever their lengths.
  static size_t MostWorkspaceBytes(const Problem& problem, int64_t query_rows);
  // Called inside the launch. `workspace` is 64-byte aligned.
  void Run(void* workspace) const;

 private:
  void Plan();
  int64_t SplitKeys();
  bool SequencesFitTheCache() const;
  void RunItems(std::atomic<size_t>& next, float* partials, void* scratch) const;
  void RunSequences(std::atomic<size_t>& next, float* partials, void* scratch) const;
  void Merge(const Item& first, float* partials) const;

  Problem problem_;
  std::vector<Item> items_;
  NarrowFunction narrow_ = nullptr;
  PanelFunction panel_ = nullptr;
  int64_t threads_ = 1;
  bool by_sequence_ = false;  // a thread takes all heads of a sequence at a time
  size_t scratch_bytes_ = 0, partials_bytes_ = 0, workspace_bytes_ = 0;  // scratch: per thread
};

}  // namespace npu::attention
