// The tensors of an operator of the gated delta rule: queries and keys [T, key heads, Dk], values [T, heads, Dv], and
// what else each token has. A value head reads the key head that it shares with its neighbours.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/recurrent/delta_rule.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/vector_math.h"

namespace npu::recurrent {

// The rows of keys or queries in float32, with PaddedWidth elements each. Made before the launch.
class PaddedRows {
 public:
  PaddedRows(OpContext& ctx, const TensorView& view) : view_(view), width_(view.shape.back()) {
    const int64_t n = rows() * padded();
    values_ =
        in_place() || n == 0 ? view.as<float>() : static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, n)));
  }

  // In the launch: the values.
  const float* Load(const char* op) const {
    if (in_place()) return values_;
    DispatchFloats(op, view_.dtype, [&](auto tag) {
      const auto* from = view_.as<const decltype(tag)>();
      const int64_t width = width_, to_width = padded();
      ParallelFor(rows(), kConversionGrain / std::max<int64_t>(1, to_width) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          ToFloat(from + r * width, values_ + r * to_width, width);
          std::fill_n(values_ + r * to_width + width, to_width - width, 0.0f);
        }
      });
    });
    return values_;
  }
  int64_t padded() const { return PaddedWidth(width_); }

 private:
  bool in_place() const { return view_.dtype == DType::kFloat32 && padded() == width_; }
  int64_t rows() const { return width_ == 0 ? 0 : view_.elements() / width_; }

  TensorView view_;
  int64_t width_;
  float* values_;
};

// A sequence's tokens.
struct TokenRange {
  int64_t begin, count;
};

// The sequences that `tokens` tokens belong to: of a length each, or one of all tokens if `lengths` is not present.
// The lengths are data of the call and may be anything.
inline std::vector<TokenRange> TokenRanges(const char* op, const TensorView& lengths, int64_t tokens) {
  if (!lengths) return {{0, tokens}};
  std::vector<TokenRange> ranges(static_cast<size_t>(lengths.elements()));
  int64_t begin = 0;
  for (int64_t i = 0; i < lengths.elements(); ++i) {
    const int64_t length = ReadOnce(lengths, i);
    NPU_OP_CHECK(op, length >= 0 && length <= tokens - begin, "expected actual_seq_lengths to divide ", tokens,
                 " tokens in order, entry ", i, " in [0, ", tokens - begin, "], got ", length);
    ranges[static_cast<size_t>(i)] = {begin, length};
    begin += length;
  }
  NPU_OP_CHECK(op, begin == tokens, "expected actual_seq_lengths whose sum is ", tokens, ", got ", begin);
  return ranges;
}

struct DeltaTensors {
  TensorView query, key, value, beta, lengths, g, gk;  // those after value may be absent
};

struct DeltaSizes {
  int64_t tokens, key_heads, heads, key_width, value_width;

  Shape result() const { return {tokens, heads, value_width}; }
  int64_t state() const { return heads * value_width * key_width; }
};

inline DeltaSizes CheckDeltaTensors(const char* op, const DeltaTensors& in) {
  const TensorView &q = in.query, &v = in.value;
  NPU_OP_CHECK(op, q && q.shape.rank() == 3, "expected query of shape [T, Nk, Dk], got ", q.shape);
  NPU_OP_CHECK(op, in.key && in.key.shape == q.shape, "expected key of query's shape ", q.shape, ", got ",
               in.key.shape);
  NPU_OP_CHECK(op, v && v.shape.rank() == 3 && v.shape[0] == q.shape[0], "expected value of shape [", q.shape[0],
               ", Nv, Dv], got ", v.shape);
  const DeltaSizes sizes{q.shape[0], q.shape[1], v.shape[1], q.shape[2], v.shape[2]};
  NPU_OP_CHECK(op, sizes.key_heads > 0 && sizes.heads % sizes.key_heads == 0,
               "expected heads of value that are a multiple of query's ", sizes.key_heads, ", got ", sizes.heads);
  NPU_OP_CHECK(op, in.key.dtype == q.dtype && v.dtype == q.dtype, "expected key and value of query's dtype ",
               NameOf(q.dtype), ", got ", NameOf(in.key.dtype), " and ", NameOf(v.dtype));
  const Shape of_heads{sizes.tokens, sizes.heads}, of_elements{sizes.tokens, sizes.heads, sizes.key_width};
  const auto check = [op](const char* name, const TensorView& tensor, const Shape& shape) {
    NPU_OP_CHECK(op, !tensor || tensor.shape == shape, "expected ", name, " of shape ", shape, ", got ", tensor.shape);
  };
  check("beta", in.beta, of_heads);
  check("g", in.g, of_heads);
  check("gk", in.gk, of_elements);
  NPU_OP_CHECK(op, !in.lengths || in.lengths.shape.rank() == 1, "expected actual_seq_lengths of shape [B], got ",
               in.lengths.shape);
  return sizes;
}

// What tokens have, in float32.
struct DeltaTokens {
  DeltaToken Token(int64_t t, int64_t head, int64_t row) const {
    const int64_t i = t * sizes.heads + head, at = i * sizes.value_width + row, shared = KeyRow(t, head) * padded;
    DeltaToken token{};
    token.key = token.decayed_key = key + shared;
    token.query = query + shared;
    token.decay = gates == nullptr ? 1.0f : std::exp(gates[i]);
    token.beta = betas == nullptr ? 1.0f : betas[i];
    if (decayed != nullptr) {
      token.decays = decayed + 2 * i * padded;
      token.decayed_key = token.decays + padded;
    }
    token.value = value + at;
    token.out = out + at;
    return token;
  }
  // Calls f(sequence, head, first row, rows) for blocks of the rows of all states, on the pool.
  template <class F>
  void ForEachBlock(int64_t sequences, const F& f) const {
    const int64_t rows = sizes.value_width, block = DeltaBlockRows(rows, sizes.key_width),
                  blocks = (rows + block - 1) / block, tasks = sequences * sizes.heads * blocks;
    const int64_t tokens = std::max<int64_t>(1, sizes.tokens / std::max<int64_t>(1, sequences));
    ParallelFor(tasks, RowGrain(block * sizes.key_width * tokens), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * block, head = task / blocks % sizes.heads;
        f(task / blocks / sizes.heads, head, first, std::min(block, rows - first));
      }
    });
  }
  // Sets `decayed`: of each token and head the decays of a row's elements, and its key times them.
  void Decay(const float* element_gates, float* to) {
    decayed = to;
    const int64_t width = sizes.key_width;
    ParallelFor(sizes.tokens * sizes.heads, RowGrain(8 * width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float *of_elements = element_gates + i * width, of_head = gates == nullptr ? 0.0f : gates[i];
        const int64_t shared = KeyRow(i / sizes.heads, i % sizes.heads) * padded;
        float *decays = to + 2 * i * padded, *decayed_key = decays + padded;
#pragma omp simd
        for (int64_t k = 0; k < width; ++k) {
          decays[k] = math::Exp(of_head + of_elements[k]);
          decayed_key[k] = decays[k] * key[shared + k];
        }
        for (float* row : {decays, decayed_key}) std::fill(row + width, row + padded, 0.0f);
      }
    });
  }

  DeltaSizes sizes;
  int64_t padded;  // elements of a row of keys and queries
  const float *query, *key, *value;
  const float *betas, *gates;  // or null: 1 and 0
  float* out;
  const float* decayed = nullptr;

  int64_t KeyRow(int64_t t, int64_t head) const { return t * sizes.key_heads + head / (sizes.heads / sizes.key_heads); }
};

// Made before the launch.
class DeltaValues {
 public:
  DeltaValues(OpContext& ctx, const DeltaTensors& in, const DeltaSizes& sizes, const TensorView& out)
      : sizes_(sizes), query_(ctx, in.query), key_(ctx, in.key), value_(ctx, in.value), out_(ctx, out) {
    if (in.beta) betas_.emplace(ctx, in.beta);
    if (in.g) gates_.emplace(ctx, in.g);
    if (!in.gk) return;
    element_gates_.emplace(ctx, in.gk);
    const int64_t n = std::max<int64_t>(1, 2 * sizes.tokens * sizes.heads * query_.padded());
    decayed_ = static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, n)));
  }

  // In the launch.
  DeltaTokens Load(const char* op) const {
    const auto floats = [op](const std::optional<FloatValues>& given) { return given ? given->Load(op) : nullptr; };
    DeltaTokens tokens{sizes_,          query_.padded(), query_.Load(op), key_.Load(op),
                       value_.Load(op), floats(betas_),  floats(gates_),  out_.values()};
    if (element_gates_) tokens.Decay(element_gates_->Load(op), decayed_);
    return tokens;
  }
  // In the launch, after the last token: rounds the results.
  void Store(const char* op) const { out_.Store(op); }

 private:
  DeltaSizes sizes_;
  PaddedRows query_, key_;
  FloatValues value_;
  FloatResults out_;
  std::optional<FloatValues> betas_, gates_, element_gates_;
  float* decayed_ = nullptr;
};

}  // namespace npu::recurrent
