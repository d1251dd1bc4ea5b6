// The gated delta rule: linear attention whose state, a matrix [value, key], is corrected by each token. Its rows are
// independent of each other, so that a block of them runs over all tokens of a sequence while it is in the L1 cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "ep/kernels/attention/core/simd.h"

namespace npu::recurrent {

// Elements of a row of a state, of a key and of a query: those of its own, then zeros.
inline int64_t PaddedWidth(int64_t width) { return (width + simd::kLanes - 1) / simd::kLanes * simd::kLanes; }

// What a token has for a block of rows of a head's state S. The state becomes S' = decay S + delta key with
// delta = beta (value - decay S key), and the result is scale S' query. Keys, queries and decays have PaddedWidth
// elements.
struct DeltaToken {
  const float *key, *query;
  float decay, beta;
  const float* decays;       // of each element of a row, in place of `decay`; or null
  const float* decayed_key;  // decays * key, or key
  const float* value;        // of the rows
  float* out;                // idem
};

namespace internal {

// Rows that are read side by side: their sums are as many as lanes, and the elements of keys and queries are loaded
// once for all of them.
inline constexpr int kDeltaRows = std::max(4, simd::kLanes / 2);
inline constexpr int64_t kMostDeltaRows = 64;  // a block has
inline constexpr int64_t kDeltaBlock = 4096;   // floats of a block of rows: half of an L1 cache

// What a pass over rows does.
enum class Pass {
  kFirst,   // of_key: their products with the key of `next`
  kMiddle,  // to = decay from + delta key by `now`, of_query: its products with the query of `now`; then kFirst
  kLast,    // kMiddle without kFirst
};

// Sums of the lanes of 2 * kRows vectors: the first half to one place, the second to another.
template <int kRows>
NPU_SIMD_INLINE void StoreSums(const simd::Vec (&sums)[2 * kRows], float* first_half, float* second_half) {
  using simd::kLanes, simd::Vec;
  alignas(64) float found[2 * kRows];
  if constexpr (2 * kRows % kLanes == 0) {
#pragma GCC unroll 4
    for (int first = 0; first < 2 * kRows; first += kLanes) {
      Vec group[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) group[i] = sums[first + i];
      simd::Store(found + first, attention::SumLanes(group));
    }
  } else {
    for (int i = 0; i < 2 * kRows; ++i) found[i] = simd::SumOfLanes(sums[i]);
  }
  std::copy_n(found, kRows, first_half);
  std::copy_n(found + kRows, kRows, second_half);
}

// One pass for what a token changes and what the next one reads, since the former has the rows in registers.
template <int kRows, Pass kPass, bool kEach>
NPU_SIMD_INLINE void PassOverRows(const float* from, float* to, int64_t width, const DeltaToken& now,
                                  const float* deltas, const DeltaToken& next, float* of_key, float* of_query) {
  using simd::Broadcast, simd::kLanes, simd::Load, simd::Vec;
  Vec sums[2 * kRows] = {}, delta[kRows];
  if constexpr (kPass != Pass::kFirst) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) delta[r] = Broadcast(deltas[r]);
  }
  const Vec same_decay = Broadcast(now.decay);
  for (int64_t i = 0; i < width; i += kLanes) {
    Vec key{}, query{}, decay = same_decay, next_key{};
    if constexpr (kPass != Pass::kFirst) {
      key = Load(now.key + i);
      query = Load(now.query + i);
      if constexpr (kEach) decay = Load(now.decays + i);
    }
    if constexpr (kPass != Pass::kLast) next_key = Load(next.decayed_key + i);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      Vec s = Load(from + r * width + i);
      if constexpr (kPass != Pass::kFirst) {
        s = decay * s + delta[r] * key;
        simd::Store(to + r * width + i, s);
        sums[kRows + r] += s * query;
      }
      if constexpr (kPass != Pass::kLast) sums[r] += s * next_key;
    }
  }
  StoreSums<kRows>(sums, of_key, of_query);
}

template <Pass kPass, bool kEach>
void PassOverBlock(const float* from, float* to, int64_t rows, int64_t width, const DeltaToken& now,
                   const float* deltas, const DeltaToken& next, float* of_key, float* of_query) {
  int64_t r = 0;
  for (; r + kDeltaRows <= rows; r += kDeltaRows)
    PassOverRows<kDeltaRows, kPass, kEach>(from + r * width, to + r * width, width, now, deltas + r, next, of_key + r,
                                           of_query + r);
  for (; r < rows; ++r)
    PassOverRows<1, kPass, kEach>(from + r * width, to + r * width, width, now, deltas + r, next, of_key + r,
                                  of_query + r);
}

}  // namespace internal

// Rows of a state in a block.
inline int64_t DeltaBlockRows(int64_t rows, int64_t width) {
  using internal::kDeltaRows;
  const int64_t fitting = internal::kDeltaBlock / std::max<int64_t>(1, PaddedWidth(width)) / kDeltaRows * kDeltaRows;
  return std::max<int64_t>(1, std::min(rows, std::clamp<int64_t>(fitting, kDeltaRows, internal::kMostDeltaRows)));
}

// A block of rows of a head's state, of type T in memory and computed in float32.
template <class T>
class DeltaBlock {
 public:
  // `rows` is at most DeltaBlockRows.
  DeltaBlock(int64_t rows, int64_t width) : rows_(rows), width_(width), padded_(PaddedWidth(width)) {
    if (rows * padded_ > internal::kDeltaBlock)
      long_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows * padded_));
  }

  // Runs `count` > 0 tokens: token(t) is a DeltaToken. The rows before the first are `initial`, or 0 if that is null;
  // after token t they are stored at stored(t), unless that is null.
  template <class TokenAt, class StoredAt>
  void Run(const T* initial, int64_t count, float scale, const TokenAt& token, const StoredAt& stored) {
    constexpr bool kFloats = std::is_same_v<T, float>;
    const bool in_place = kFloats && padded_ == width_;
    const float* from = nullptr;
    if constexpr (kFloats) from = in_place ? initial : nullptr;
    if (from == nullptr) from = Load(initial);
    DeltaToken now = token(0);
    Run<Pass::kFirst>(from, values(), now, now);
    for (int64_t t = 0; t < count; ++t) {
      const float decay = now.decays == nullptr ? now.decay : 1.0f;
      for (int64_t r = 0; r < rows_; ++r) deltas_[r] = now.beta * (now.value[r] - decay * of_key_[r]);
      T* const kept = stored(t);
      float* to = values();
      if constexpr (kFloats) to = in_place && kept != nullptr ? kept : to;
      DeltaToken next = now;
      if (t + 1 < count) {
        next = token(t + 1);
        Run<Pass::kMiddle>(from, to, now, next);
      } else {
        Run<Pass::kLast>(from, to, now, next);
      }
      for (int64_t r = 0; r < rows_; ++r) now.out[r] = scale * of_query_[r];
      from = to;
      now = next;
      if (!in_place && kept != nullptr) Store(kept);
    }
  }
  // What follows no token.
  void Copy(const T* initial, T* to) {
    if (initial == nullptr) {
      std::fill_n(to, rows_ * width_, FromFloat<T>(0.0f));
    } else {
      std::copy_n(initial, rows_ * width_, to);
    }
  }

 private:
  using Pass = internal::Pass;

  float* values() { return long_ ? long_.get() : short_; }

  const float* Load(const T* rows) {
    std::fill_n(values(), rows_ * padded_, 0.0f);
    for (int64_t r = 0; rows != nullptr && r < rows_; ++r) ToFloat(rows + r * width_, values() + r * padded_, width_);
    return values();
  }
  void Store(T* rows) {
    for (int64_t r = 0; r < rows_; ++r) FromFloat(values() + r * padded_, rows + r * width_, width_);
  }

  template <Pass kPass>
  void Run(const float* from, float* to, const DeltaToken& now, const DeltaToken& next) {
    const auto run =
        now.decays == nullptr ? &internal::PassOverBlock<kPass, false> : &internal::PassOverBlock<kPass, true>;
    run(from, to, rows_, padded_, now, deltas_, next, of_key_, of_query_);
  }

  int64_t rows_, width_, padded_;
  alignas(64) float of_key_[internal::kMostDeltaRows], of_query_[internal::kMostDeltaRows],
      deltas_[internal::kMostDeltaRows];
  alignas(64) float short_[internal::kDeltaBlock];
  std::unique_ptr<float[]> long_;
};

}  // namespace npu::recurrent
