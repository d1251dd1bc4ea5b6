// Which attention weights are kept, as a function of their index: no mask of queries times keys is stored, and the
// backward pass recomputes the same decisions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "ep/runtime/generator_key.h"
#include "ep/runtime/philox.h"
#include "ep/runtime/random.h"

namespace npu::attention {

class Dropout {
 public:
  Dropout() = default;  // keeps all
  // Weight i is kept if word i of the generator is below keep_prob * 2^32.
  Dropout(double keep_prob, DrawnSeed seed, uint64_t offset) : Dropout(keep_prob) {
    seed_ = std::move(seed);
    offset_ = offset;
  }
  Dropout(double keep_prob, DrawnPosition position) : Dropout(keep_prob) { position_ = std::move(position); }
  // Weight i is kept if bit i % 8 of byte i / 8 is set.
  Dropout(double keep_prob, const uint8_t* bits) : Dropout(keep_prob) { bits_ = bits; }

  bool active() const { return active_; }

  // to[i] = 1 / keep_prob if weight first + i is kept, else 0.
  void Fill(int64_t first, int64_t n, float* to) const {
    if (bits_ != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + i;
        to[i] = (bits_[at / 8] >> (at % 8) & 1) != 0 ? scale_ : 0.0f;
      }
      return;
    }
    constexpr int64_t kBlocks = 32;
    const Philox generator = Generator();
    uint32_t words[4 * kBlocks];
    int64_t skip = first % 4;
    for (int64_t block = first / 4; n > 0; block += kBlocks, skip = 0) {
      const int64_t count = std::min(n, 4 * kBlocks - skip);
      generator.Fill(static_cast<uint64_t>(block), (skip + count + 3) / 4, words);
      for (int64_t i = 0; i < count; ++i) to[i] = words[skip + i] < threshold_ ? scale_ : 0.0f;
      to += count;
      n -= count;
    }
  }

 private:
  explicit Dropout(double keep_prob)
      : active_(keep_prob < 1.0),
        scale_(keep_prob > 0.0 ? static_cast<float>(1.0 / keep_prob) : 0.0f),
        threshold_(static_cast<uint64_t>(keep_prob * 0x1p32)) {}

  Philox Generator() const {
    if (!position_) return {seed_.Now(), offset_};
    const PhiloxState now = position_->Now();
    return {KeyOf(now), now.offset};
  }

  bool active_ = false;
  float scale_ = 1.0f;
  uint64_t threshold_ = 0;
  DrawnSeed seed_;
  std::optional<DrawnPosition> position_;  // instead of seed_ and offset_
  uint64_t offset_ = 0;
  const uint8_t* bits_ = nullptr;
};

}  // namespace npu::attention
