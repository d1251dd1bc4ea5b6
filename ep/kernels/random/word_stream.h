// Random numbers one after the other, for distributions that need an unknown number of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "ep/runtime/philox.h"

namespace npu {

// The numbers of element `i` of a tensor: streams of different elements do not overlap.
class WordStream {
 public:
  WordStream(const Philox& words, int64_t i) : words_(words), block_(static_cast<uint64_t>(i) << 32) {}

  // In (0, 1), with 52 bits.
  double Unit() {
    if (used_ == 2) {
      words_.Fill(block_++, 1, drawn_);
      used_ = 0;
    }
    const uint64_t bits = uint64_t{drawn_[2 * used_]} << 32 | drawn_[2 * used_ + 1];
    ++used_;
    return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  }
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(Unit()));
    return radius * std::cos(2 * std::numbers::pi * Unit());
  }

 private:
  const Philox& words_;
  uint64_t block_;
  uint32_t drawn_[4] = {};
  int used_ = 2;  // of the two numbers in `drawn_`
};

}  // namespace npu
