// The largest keys of a row, such as the scores of experts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace npu {

class TopKeys {
 public:
  // Of rows of n keys, the k largest, 1 <= k <= n.
  TopKeys(int64_t n, int64_t k) : n_(n), k_(k), best_(static_cast<size_t>(k <= kFew ? k : n)) {}

  // positions[j] = where the row's j-th largest key is; of equal keys the first one comes first.
  void Select(const int32_t* keys, int32_t* positions) {
    if (k_ <= kFew) {
      Scan(keys);
    } else {
      for (int64_t i = 0; i < n_; ++i) best_[i] = Rank(keys[i], i);
      std::nth_element(best_.begin(), best_.begin() + (k_ - 1), best_.end(), std::greater<>());
      std::sort(best_.begin(), best_.begin() + k_, std::greater<>());
    }
    for (int64_t j = 0; j < k_; ++j) positions[j] = static_cast<int32_t>(~static_cast<uint32_t>(best_[j]));
  }

 private:
  static constexpr int64_t kFew = 64, kBlock = 16;

  // Greater for a greater key, then for a lower position.
  static uint64_t Rank(int32_t key, int64_t position) {
    const uint32_t high = static_cast<uint32_t>(key) ^ 0x80000000u;
    return static_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(position));
  }

  // Inserts into best_[0, count), which descends; the last one falls out if there is no room.
  void Insert(uint64_t rank, int64_t count) {
    int64_t place = std::min(count, k_ - 1);
    for (; place > 0 && best_[place - 1] < rank; --place) best_[place] = best_[place - 1];
    best_[place] = rank;
  }

  // Most blocks hold no key above the k-th best so far, which one comparison of vectors tells.
  void Scan(const int32_t* keys) {
    for (int64_t i = 0; i < k_; ++i) Insert(Rank(keys[i], i), i);
    int32_t least = KeyOf(best_[k_ - 1]);
    int64_t i = k_;
    for (; i + kBlock <= n_; i += kBlock) {
      int32_t above = 0;
#pragma omp simd reduction(| : above)
      for (int64_t j = 0; j < kBlock; ++j) above |= keys[i + j] > least ? 1 : 0;
      if (above != 0) least = InsertAbove(keys, i, i + kBlock, least);
    }
    InsertAbove(keys, i, n_, least);
  }

  // Returns the least key that is now among the best.
  int32_t InsertAbove(const int32_t* keys, int64_t begin, int64_t end, int32_t least) {
    for (int64_t i = begin; i < end; ++i) {
      if (keys[i] <= least) continue;
      Insert(Rank(keys[i], i), k_);
      least = KeyOf(best_[k_ - 1]);
    }
    return least;
  }

  static int32_t KeyOf(uint64_t rank) { return static_cast<int32_t>(static_cast<uint32_t>(rank >> 32) ^ 0x80000000u); }

  int64_t n_, k_;
  std::vector<uint64_t> best_;
};

}  // namespace npu
