// Greedy suppression of boxes in order of their scores, without sorting those that are suppressed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "ep/kernels/detection/chosen_boxes.h"
#include "ep/kernels/detection/score_order.h"

namespace npu::detection {

// Boxes whose scores `counts` accepts, in ranges of descending score; in a range, as given.
class ScoreRanges {
 public:
  // Scores are `step` apart; positions must fit int32.
  template <class Counts>
  ScoreRanges(const float* scores, int64_t n, int64_t step, const Counts& counts) {
    std::vector<uint64_t> given(static_cast<size_t>(n));
    size_t count = 0;
    uint32_t least = ~uint32_t{0}, most = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float score = scores[i * step];
      if (!counts(score)) continue;
      const uint32_t key = DescendingKey(score);
      given[count++] = uint64_t{key} << 32 | static_cast<uint64_t>(i);
      least = std::min(least, key);
      most = std::max(most, key);
    }
    // About four boxes a range if the scores are spread evenly: few are sorted, and few ranges are empty.
    constexpr int kMostBits = 14;
    const int spread = count > 0 ? std::bit_width(most - least) : 0;
    const int bits = std::min({spread, std::max(static_cast<int>(std::bit_width(count)) - 2, 1), kMostBits});
    const int shift = 32 + spread - bits;
    const uint64_t lowest = uint64_t{least} << 32;
    const auto range_of = [=](uint64_t entry) { return static_cast<size_t>((entry - lowest) >> shift); };
    ends_.resize(size_t{1} << bits);
    for (size_t i = 0; i < count; ++i) ++ends_[range_of(given[i])];
    uint32_t before = 0;
    for (uint32_t& end : ends_) before += std::exchange(end, before);
    entries_.resize(count);
    for (size_t i = 0; i < count; ++i) entries_[ends_[range_of(given[i])]++] = given[i];
  }

  size_t size() const { return ends_.size(); }
  const uint64_t* begin(size_t range) const { return entries_.data() + (range == 0 ? 0 : ends_[range - 1]); }
  const uint64_t* end(size_t range) const { return entries_.data() + ends_[range]; }
  static int64_t PositionOf(uint64_t entry) { return static_cast<int64_t>(entry & 0xffffffff); }

 private:
  std::vector<uint64_t> entries_;  // key and position: they order as scores do, equal ones as given
  std::vector<uint32_t> ends_;
};

// Adds to `taken` the boxes, by descending score, that none before suppresses, equal scores as given and NaN last;
// `take(position)` gets each, and returns whether to go on. Most boxes are suppressed by one of an earlier range, and
// then their order in their own does not matter.
template <class Counts, class BoxAt, class Take>
void ChooseGreedily(const float* scores, int64_t n, int64_t step, const Counts& counts, const BoxAt& box_at,
                    ChosenBoxes& taken, const Take& take) {
  const ScoreRanges ranges(scores, n, step, counts);
  std::vector<uint64_t> remaining;
  for (size_t range = 0; range < ranges.size(); ++range) {
    remaining.clear();
    for (const uint64_t* entry = ranges.begin(range); entry != ranges.end(range); ++entry)
      if (!taken.Suppresses(box_at(ScoreRanges::PositionOf(*entry)))) remaining.push_back(*entry);
    std::sort(remaining.begin(), remaining.end());
    for (const uint64_t entry : remaining) {
      const int64_t position = ScoreRanges::PositionOf(entry);
      if (taken.Add(box_at(position)) && !take(position)) return;
    }
  }
}

}  // namespace npu::detection
