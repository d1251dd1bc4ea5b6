// Positions in the order of numbers: NaN is greater than every number, both zeros are equal, and of equal numbers the
// one at the lower position comes first.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/ordered_key.h"

namespace npu {

// Unsigned integers that order as the numbers do.
template <class C>
auto UnsignedKey(C x) {
  if constexpr (std::is_same_v<C, double>) {
    const auto bits = std::bit_cast<uint64_t>(x + 0.0);
    constexpr uint64_t kSign = uint64_t{1} << 63;
    return x != x ? ~uint64_t{0} : (bits & kSign) != 0 ? ~bits : bits | kSign;
  } else if constexpr (std::is_same_v<C, float>) {
    return static_cast<uint32_t>(OrderedKey(x)) ^ 0x80000000u;
  } else if constexpr (sizeof(C) <= 4) {
    return static_cast<uint32_t>(static_cast<int64_t>(x) - int64_t{std::numeric_limits<C>::min()});
  } else {
    return static_cast<uint64_t>(x) ^ (std::is_signed_v<C> ? uint64_t{1} << 63 : 0);
  }
}

// A key and its position in one integer.
class PackedKey {
 public:
  static constexpr int kDigits = 4;
  PackedKey() = default;
  PackedKey(uint32_t key, int64_t position) : bits_(uint64_t{key} << 32 | static_cast<uint32_t>(position)) {}
  int64_t position() const { return static_cast<uint32_t>(bits_); }
  uint32_t Digit(int digit) const { return bits_ >> (32 + 8 * digit) & 0xff; }
  bool operator<(const PackedKey& other) const { return bits_ < other.bits_; }

 private:
  uint64_t bits_;
};

// The same of longer keys, and of more than 2^32 positions.
class WideKey {
 public:
  static constexpr int kDigits = 8;
  WideKey() = default;
  WideKey(uint64_t key, int64_t position) : key_(key), position_(position) {}
  int64_t position() const { return position_; }
  uint32_t Digit(int digit) const { return key_ >> 8 * digit & 0xff; }
  bool operator<(const WideKey& other) const {
    return key_ != other.key_ ? key_ < other.key_ : position_ < other.position_;
  }

 private:
  uint64_t key_;
  int64_t position_;
};

// f(PackedKey() or WideKey()) for numbers of type C at `n` positions.
template <class C, class F>
void WithKeyType(int64_t n, const F& f) {
  if (sizeof(UnsignedKey(C{})) == 4 && n <= std::numeric_limits<uint32_t>::max()) {
    if constexpr (sizeof(UnsignedKey(C{})) == 4) f(PackedKey());
  } else {
    f(WideKey());
  }
}

// Sorts n keys, whose positions ascend; `scratch` has room for as many. A radix sort, since comparisons of numbers
// cannot be predicted; digits that all keys share take no pass.
template <class Key>
void SortKeys(Key* keys, int64_t n, Key* scratch) {
  constexpr int64_t kFew = 128;  // that std::sort sorts in less time
  if (n < kFew) return std::sort(keys, keys + n);
  std::array<std::array<int64_t, 256>, Key::kDigits> places{};  // first how many keys, then where the next one goes
  for (int64_t i = 0; i < n; ++i)
    for (int digit = 0; digit < Key::kDigits; ++digit) ++places[digit][keys[i].Digit(digit)];
  Key *from = keys, *to = scratch;
  for (int digit = 0; digit < Key::kDigits; ++digit) {
    if (places[digit][from[0].Digit(digit)] == n) continue;
    int64_t before = 0;
    for (int64_t& place : places[digit]) before += std::exchange(place, before);
    for (int64_t i = 0; i < n; ++i) to[places[digit][from[i].Digit(digit)]++] = from[i];
    std::swap(from, to);
  }
  if (from != keys) std::copy_n(from, n, keys);
}

}  // namespace npu
