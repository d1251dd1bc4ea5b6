#include "ep/kernels/attention/training/gradient.h"

#include <atomic>
#include <cmath>
#include <utility>

#include "ep/kernels/attention/core/panel.h"
#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

namespace {

constexpr int64_t kBlock = 64;  // queries and keys of a block, whose data stays in the L2 cache

// C[m][n] (+)= sum over k of A[m * a_row + k * a_step] * B[k][n]; columns are whole vectors and rows a multiple of 4.
template <int kRows, int kVectors>
NPU_SIMD_INLINE void ProductTile(int64_t depth, const float* a, int64_t a_row, int64_t a_step, const float* b,
                                 int64_t b_row, float* c, int64_t c_row, bool accumulate) {
  Vec sum[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vec x[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) x[v] = Load(b + k * b_row + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const float w = a[i * a_row + k * a_step];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] += x[v] * w;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + i * c_row + v * kLanes;
      Store(to, accumulate ? Load(to) + sum[i][v] : sum[i][v]);
    }
  }
}

void Product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row, int64_t a_step,
             const float* b, int64_t b_row, float* c, int64_t c_row, bool accumulate) {
  ForEachTile(0, rows, [&](auto size, int64_t row) NPU_SIMD_INLINE_LAMBDA {
    int64_t n = 0;
    for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
      ProductTile<size, 2>(depth, a + row * a_row, a_row, a_step, b + n, b_row, c + row * c_row + n, c_row, accumulate);
    }
    for (; n < columns; n += kLanes) {
      ProductTile<size, 1>(depth, a + row * a_row, a_row, a_step, b + n, b_row, c + row * c_row + n, c_row, accumulate);
    }
  });
}

// The buffers of one thread.
struct Scratch {
  Scratch(const Problem& p, void* base) : carver(base) {
    size = RoundUp(p.head_size, kLanes);
    value_size = RoundUp(p.value_size, kLanes);
    keys = carver.Take<float>(kBlock * size);
    keys_across = carver.Take<float>(size * kBlock);
    values = carver.Take<float>(kBlock * value_size);
    values_across = carver.Take<float>(value_size * kBlock);
    key_sums = carver.Take<float>(kBlock * size);
    value_sums = carver.Take<float>(kBlock * value_size);
    queries = carver.Take<float>(kBlock * size);
    outputs = carver.Take<float>(kBlock * value_size);
    weights = carver.Take<float>(kBlock * kBlock);
    scores = carver.Take<float>(kBlock * kBlock);
    bias = carver.Take<float>(kBlock);
    factors = carver.Take<float>(kBlock);
  }
  Carver carver;
  int64_t size, value_size;   // padded
  float *keys, *keys_across;  // [key][size], [size][key]
  float *values, *values_across;
  float *key_sums, *value_sums;  // gradients of the block
  float *queries, *outputs;      // of a block of queries; outputs: their gradients
  float *weights, *scores;       // [query][key]: weights after dropout, and the scores' gradients
  float *bias, *factors;         // of a row
};

void Across(const float* from, int64_t columns, float* to) {
  for (int64_t row = 0; row < kBlock; ++row) {
    for (int64_t column = 0; column < columns; ++column) to[column * kBlock + row] = from[row * columns + column];
  }
}

bool IsFinite(const float* row, int64_t size) {
  float probe = 0;
#pragma omp simd reduction(+ : probe)
  for (int64_t d = 0; d < size; ++d) probe += row[d] * 0.0f;
  return probe == 0.0f;
}

// Zeroes rows that contain NaN or infinity, after their scores were computed. A pair that sees such a row already has
// gradient NaN (0 for a score of -inf); for a pair that does not, 0 times the row would be NaN.
void ClearInfinite(float* rows, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) {
    if (!IsFinite(rows + i * size, size)) std::fill_n(rows + i * size, size, 0.0f);
  }
}

template <class T>
T* RowAt(const Rows& rows, int64_t first, int64_t head, int64_t row) {
  return static_cast<T*>(rows.data) + first + head * rows.head_stride + row * rows.row_stride;
}

int64_t StatisticsPlace(const Problem& p, const Sequence& s, const RowPlace& at) {
  return s.lse + at.head * p.lse_head_stride + at.query * p.lse_row_stride;
}

// A weight is factor * 2^(score - base), with scores in units of log 2.
struct Normalisation {
  float base, factor;  // factor 0: a row without weights
};
Normalisation NormalisationOf(const Problem& p, int64_t place) {
  if (p.row_max == nullptr) {
    const float lse = p.lse[place];
    return {lse * kLog2E, lse == kNegativeInfinity ? 0.0f : 1.0f};
  }
  const float max = p.row_max[place], sum = p.row_sum[place];
  return {max * kLog2E, max == kNegativeInfinity || sum == 0.0f ? 0.0f : 1.0f / sum};
}

}  // namespace

struct Gradient::Buffers {
  Buffers(const Gradient& g, void* base) : carver(base) {
    query_sums = carver.Take<float>(g.parts_ * g.rows_ * g.row_size_);
    row_products = carver.Take<float>(g.rows_);
    bias_sums = carver.Take<float>(g.problem_.bias == nullptr ? 0 : g.problem_.bias_elements);
    scratch = carver.Take<char>(static_cast<int64_t>(g.scratch_bytes_) * g.threads_);
  }
  Carver carver;
  float* query_sums;    // [part][row][row_size_]
  float* row_products;  // dot product of the output and its gradient
  float* bias_sums;
  char* scratch;
};

Gradient::Gradient(GradientProblem problem) : problem_(std::move(problem)), threads_(NumThreads()) {
  const Problem& p = problem_.forward;
  row_size_ = RoundUp(p.head_size, kLanes);
  int64_t most_keys = 0;
  for (const Sequence& s : p.sequences) {
    first_rows_.push_back(rows_);
    rows_ += s.query_rows * p.heads;
    most_keys = std::max(most_keys, s.key_len);
  }
  const auto units = static_cast<int64_t>(p.sequences.size()) * p.key_heads;
  // With too few key heads to keep the threads busy, their key blocks are divided among threads. Each head's bias
  // gradient is summed by a single thread.
  if (problem_.bias == nullptr && units < 2 * threads_) {
    parts_ = std::clamp<int64_t>(most_keys / (4 * kBlock), 1, threads_);
  }
  Shape{parts_, rows_, row_size_, int64_t{sizeof(float)}}.Elements();  // throws if it overflows
  scratch_bytes_ = Scratch(p, nullptr).carver.bytes();
  workspace_bytes_ = Buffers(*this, nullptr).carver.bytes();
}

int64_t Gradient::FirstRow(size_t sequence, int64_t key_head) const {
  const Problem& p = problem_.forward;
  return first_rows_[sequence] + key_head * (p.heads / p.key_heads) * p.sequences[sequence].query_rows;
}

void Gradient::Run(void* workspace) const {
  DispatchFloats(problem_.forward.op, problem_.forward.query_dtype,
                 [&](auto type) { RunAs<decltype(type)>(workspace); });
}

template <class T>
void Gradient::RunAs(void* workspace) const {
  const Problem& p = problem_.forward;
  const Buffers buffers(*this, workspace);
  // Rows that belong to no sequence have no gradient.
  if (problem_.key_elements > 0) std::fill_n(static_cast<T*>(problem_.key.data), problem_.key_elements, T{});
  if (problem_.value_elements > 0) std::fill_n(static_cast<T*>(problem_.value.data), problem_.value_elements, T{});
  if (buffers.bias_sums != nullptr && problem_.bias != nullptr) {
    std::fill_n(buffers.bias_sums, problem_.bias_elements, 0.0f);
  }
  std::fill_n(buffers.query_sums, parts_ * rows_ * row_size_, 0.0f);
  SumRows<T>(buffers);

  const auto sequences = static_cast<int64_t>(p.sequences.size());
  const bool by_head = problem_.bias != nullptr;
  const int64_t items = (by_head ? 1 : sequences * parts_) * p.key_heads;
  std::atomic<int64_t> next{0};
  ParallelFor(threads_, 1, [&](int64_t thread, int64_t) {
    void* scratch = buffers.scratch + static_cast<size_t>(thread) * scratch_bytes_;
    for (int64_t i = next++; i < items; i = next++) {
      const int64_t key_head = i % p.key_heads, rest = i / p.key_heads;
      if (by_head) {
        for (int64_t s = 0; s < sequences; ++s) ForKeyHead<T>(buffers, static_cast<size_t>(s), key_head, 0, scratch);
      } else {
        ForKeyHead<T>(buffers, static_cast<size_t>(rest / parts_), key_head, rest % parts_, scratch);
      }
    }
  });
  WriteQueries<T>(buffers);
  if (by_head) FromFloat(buffers.bias_sums, static_cast<T*>(problem_.bias), problem_.bias_elements);
  if (problem_.sink != nullptr) SumSinks(buffers);
}

// The term that all weight gradients of a row share: sum over keys of weight times gradient.
template <class T>
void Gradient::SumRows(const Buffers& buffers) const {
  const Problem& p = problem_.forward;
  for (size_t i = 0; i < p.sequences.size(); ++i) {
    const Sequence& s = p.sequences[i];
    ParallelFor(s.query_rows * p.heads, kBlock, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(2 * p.value_size));
      const int64_t group_rows = s.query_rows * (p.heads / p.key_heads);
      for (int64_t r = begin; r < end; ++r) {
        Item item;
        item.sequence = static_cast<int32_t>(i);
        item.key_head = static_cast<int32_t>(r / group_rows);
        const RowPlace at = PlaceOf(p, item, r % group_rows);
        float *a = row.data(), *b = a + p.value_size;
        ToFloat(RowAt<const T>(p.output, s.output, at.head, at.query), a, p.value_size);
        ToFloat(RowAt<const T>(problem_.output_gradient, s.output, at.head, at.query), b, p.value_size);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < p.value_size; ++d) sum += a[d] * b[d];
        buffers.row_products[first_rows_[i] + r] = sum;
      }
    });
  }
}

namespace {

// One key head of one sequence.
template <class T>
class KeyHeadGradient {
 public:
  KeyHeadGradient(const GradientProblem& g, const Item& item, float* query_sums, const float* row_products,
                  float* bias_sums, void* scratch)
      : g_(g),
        p_(g.forward),
        item_(item),
        s_(p_.sequences[static_cast<size_t>(item.sequence)]),
        b_(p_, scratch),
        group_(p_.heads / p_.key_heads),
        query_sums_(query_sums),
        row_products_(row_products),
        bias_sums_(bias_sums) {}

  // Processes the block of keys from `begin` on.
  void Run(int64_t begin) {
    const int64_t keys = std::min(kBlock, s_.key_len - begin);
    LoadKeys(begin, keys);
    const int64_t rows = s_.query_rows * group_;
    for (int64_t row = 0; row < rows; row += kBlock) Step(row, std::min(kBlock, rows - row), begin, keys);
    for (int64_t j = 0; j < keys; ++j) {
      FromFloat(b_.key_sums + j * b_.size, RowAt<T>(g_.key, s_.key, item_.key_head, begin + j), p_.head_size);
      FromFloat(b_.value_sums + j * b_.value_size, RowAt<T>(g_.value, s_.value, item_.key_head, begin + j),
                p_.value_size);
    }
  }

 private:
  // Rows and columns beyond the last are zero: the matmuls run over whole tiles.
  void LoadKeys(int64_t begin, int64_t keys) {
    CopyKeys(p_, s_, item_.key_head, begin, begin + keys, b_.keys, b_.size);
    CopyRows(p_, s_, Values(p_, s_), item_.key_head, begin, begin + keys, p_.value_size, b_.values, b_.value_size);
    ClearTails(b_.values, keys, p_.value_size, b_.value_size);
    std::fill(b_.keys + keys * b_.size, b_.keys + kBlock * b_.size, 0.0f);
    std::fill(b_.values + keys * b_.value_size, b_.values + kBlock * b_.value_size, 0.0f);
    Across(b_.keys, b_.size, b_.keys_across);
    ClearInfinite(b_.keys, keys, b_.size);
    Across(b_.values, b_.value_size, b_.values_across);
    std::fill_n(b_.key_sums, kBlock * b_.size, 0.0f);
    std::fill_n(b_.value_sums, kBlock * b_.value_size, 0.0f);
  }

  void LoadQueries(int64_t row, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      CopyQuery(p_, item_, row + i, b_.queries + i * b_.size);
      const RowPlace at = PlaceOf(p_, item_, row + i);
      ToFloat(RowAt<const T>(g_.output_gradient, s_.output, at.head, at.query), b_.outputs + i * b_.value_size,
              p_.value_size);
    }
    ClearTails(b_.queries, rows, p_.head_size, b_.size);
    ClearTails(b_.outputs, rows, p_.value_size, b_.value_size);
    const int64_t padded = RoundUp(rows, 4);
    std::fill(b_.queries + rows * b_.size, b_.queries + padded * b_.size, 0.0f);
    std::fill(b_.outputs + rows * b_.value_size, b_.outputs + padded * b_.value_size, 0.0f);
  }

  void Step(int64_t row, int64_t rows, int64_t begin, int64_t keys) {
    const KeyRange seen = KeysOfRows(s_, row / group_, (row + rows - 1) / group_);
    if (seen.begin >= begin + keys || seen.end <= begin) return;
    LoadQueries(row, rows);
    const int64_t padded = RoundUp(rows, 4), columns = RoundUp(keys, kLanes);
    Product(padded, columns, p_.head_size, b_.queries, b_.size, 1, b_.keys_across, kBlock, b_.weights, kBlock, false);
    Product(padded, columns, p_.value_size, b_.outputs, b_.value_size, 1, b_.values_across, kBlock, b_.scores, kBlock,
            false);
    for (int64_t i = 0; i < rows; ++i) Weigh(row, i, begin, keys);
    std::fill(b_.scores + rows * kBlock, b_.scores + padded * kBlock, 0.0f);
    ClearInfinite(b_.queries, rows, b_.size);
    ScatterInfinite(rows, keys);
    const int64_t key_rows = RoundUp(keys, 4);
    Product(key_rows, b_.value_size, rows, b_.weights, 1, kBlock, b_.outputs, b_.value_size, b_.value_sums,
            b_.value_size, true);
    Product(key_rows, b_.size, rows, b_.scores, 1, kBlock, b_.queries, b_.size, b_.key_sums, b_.size, true);
    // query_sums_ ends with the last row: padded rows are summed in a separate buffer and dropped.
    if (padded == rows) {
      Product(rows, b_.size, keys, b_.scores, kBlock, 1, b_.keys, b_.size, query_sums_ + row * b_.size, b_.size, true);
    } else {
      Product(padded, b_.size, keys, b_.scores, kBlock, 1, b_.keys, b_.size, b_.queries, b_.size, false);
      float* to = query_sums_ + row * b_.size;
      for (int64_t n = 0; n < rows * b_.size; ++n) to[n] += b_.queries[n];
    }
  }

  // Adds rows with NaN or infinity in the output gradients to the keys that they weigh, one by one, then zeroes them: 0
  // times such a row would be NaN.
  void ScatterInfinite(int64_t rows, int64_t keys) {
    for (int64_t i = 0; i < rows; ++i) {
      float* row = b_.outputs + i * b_.value_size;
      if (IsFinite(row, b_.value_size)) continue;
      for (int64_t j = 0; j < keys; ++j) {
        const float weight = b_.weights[i * kBlock + j];
        if (weight == 0.0f) continue;
        float* to = b_.value_sums + j * b_.value_size;
        for (int64_t d = 0; d < b_.value_size; ++d) to[d] += weight * row[d];
      }
      std::fill_n(row, b_.value_size, 0.0f);
    }
  }

  // Turns the dot products of row `row + i` into its weights after dropout and the gradients of its scores.
  void Weigh(int64_t row, int64_t i, int64_t begin, int64_t keys) {
    float *weights = b_.weights + i * kBlock, *scores = b_.scores + i * kBlock;
    const RowPlace at = PlaceOf(p_, item_, row + i);
    const KeyRange seen = KeysOfRow(s_, at.query);
    const Normalisation norm = NormalisationOf(p_, StatisticsPlace(p_, s_, at));
    const int64_t from = std::clamp<int64_t>(seen.begin - begin, 0, kBlock);
    const int64_t to = std::clamp<int64_t>(seen.end - begin, 0, keys);
    if (from >= to || norm.factor == 0.0f) {
      std::fill_n(weights, kBlock, 0.0f);
      std::fill_n(scores, kBlock, 0.0f);
      return;
    }
    const bool biased = p_.mask != nullptr || p_.bias.data != nullptr;
    if (biased) {
      FillBias(p_, item_, row + i, begin, keys, b_.bias);
      std::fill(b_.bias + keys, b_.bias + kBlock, 0.0f);
    }
    const bool dropped = p_.dropout.active();
    if (dropped) {
      FillDropout(p_, item_, row + i, begin, keys, b_.factors);
      std::fill(b_.factors + keys, b_.factors + kBlock, 0.0f);
    }
    const float product = row_products_[row + i], scale = p_.scale * kLog2E;
    for (int64_t j = 0; j < RoundUp(keys, kLanes); j += kLanes) {
      const Vec bias = biased ? Load(b_.bias + j) : Vec{};
      const auto hidden = bias == kNegativeInfinity;
      const Vec weight = hidden ? Vec{} : Exp2(Load(weights + j) * scale - norm.base + bias) * norm.factor;
      const Vec factor = dropped ? Load(b_.factors + j) : Broadcast(1.0f);
      Store(weights + j, weight * factor);
      Store(scores + j, hidden ? Vec{} : weight * (Load(scores + j) * factor - product) * p_.scale);
    }
    for (float* values : {weights, scores}) {
      std::fill(values, values + from, 0.0f);
      std::fill(values + to, values + kBlock, 0.0f);
    }
    if (bias_sums_ != nullptr) {
      const BiasPlace bias = BiasOf(p_, s_, at.query);
      float* sums = bias_sums_ + s_.bias + at.head * p_.bias.head_stride + bias.offset + begin;
      const int64_t held = std::min(to, bias.keys - begin);
      for (int64_t j = from; j < held; ++j) sums[j] += scores[j];
    }
  }

  const GradientProblem& g_;
  const Problem& p_;
  const Item& item_;
  const Sequence& s_;
  Scratch b_;
  int64_t group_;
  float* query_sums_;          // of the rows of this key head
  const float* row_products_;  // likewise
  float* bias_sums_;
};

}  // namespace

template <class T>
void Gradient::ForKeyHead(const Buffers& buffers, size_t sequence, int64_t key_head, int64_t part,
                          void* scratch) const {
  Item item;
  item.sequence = static_cast<int32_t>(sequence);
  item.key_head = static_cast<int32_t>(key_head);
  const int64_t first = FirstRow(sequence, key_head);
  KeyHeadGradient<T> work(problem_, item, buffers.query_sums + (part * rows_ + first) * row_size_,
                          buffers.row_products + first, problem_.bias == nullptr ? nullptr : buffers.bias_sums,
                          scratch);
  // Blocks are assigned round-robin: under a causal mask the first ones are seen by most queries.
  const int64_t keys = problem_.forward.sequences[sequence].key_len;
  for (int64_t begin = part * kBlock; begin < keys; begin += parts_ * kBlock) work.Run(begin);
}

template <class T>
void Gradient::WriteQueries(const Buffers& buffers) const {
  const Problem& p = problem_.forward;
  for (size_t i = 0; i < p.sequences.size(); ++i) {
    const Sequence& s = p.sequences[i];
    const int64_t group_rows = s.query_rows * (p.heads / p.key_heads);
    ParallelFor(s.query_rows * p.heads, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* sums = buffers.query_sums + (first_rows_[i] + r) * row_size_;
        for (int64_t part = 1; part < parts_; ++part) {
          const float* more = sums + part * rows_ * row_size_;
          for (int64_t d = 0; d < p.head_size; ++d) sums[d] += more[d];
        }
        Item item;
        item.sequence = static_cast<int32_t>(i);
        item.key_head = static_cast<int32_t>(r / group_rows);
        const RowPlace at = PlaceOf(p, item, r % group_rows);
        FromFloat(sums, RowAt<T>(problem_.query, s.query, at.head, at.query), p.head_size);
      }
    });
  }
}

void Gradient::SumSinks(const Buffers& buffers) const {
  const Problem& p = problem_.forward;
  std::fill_n(problem_.sink, p.heads, 0.0f);
  for (size_t i = 0; i < p.sequences.size(); ++i) {
    const Sequence& s = p.sequences[i];
    const int64_t group_rows = s.query_rows * (p.heads / p.key_heads);
    for (int64_t r = 0; r < s.query_rows * p.heads; ++r) {
      Item item;
      item.sequence = static_cast<int32_t>(i);
      item.key_head = static_cast<int32_t>(r / group_rows);
      const RowPlace at = PlaceOf(p, item, r % group_rows);
      const int64_t place = StatisticsPlace(p, s, at);
      if (p.row_max[place] == kNegativeInfinity || p.row_sum[place] == 0.0f) continue;
      const float share = std::exp(p.sink[at.head] - p.row_max[place]) / p.row_sum[place];
      problem_.sink[at.head] -= share * buffers.row_products[first_rows_[i] + r];
    }
  }
}

}  // namespace npu::attention
