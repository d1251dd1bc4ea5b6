// Transposes of square blocks of elements of 1, 2, 4 or 8 bytes, in the registers of 16 bytes that every machine has.
#pragma once

#include <cstdint>
#include <utility>

namespace npu {

template <class T>
struct RegisterOf {
  using Type __attribute__((vector_size(16), aligned(1), may_alias)) = T;
};
template <class T>
using Register = typename RegisterOf<T>::Type;

// Rows and columns of a block.
template <class T>
inline constexpr int kBlockSide = 16 / sizeof(T);

namespace internal {

// Elements of the first half of either row, or of the second, from both rows in turn.
template <class T, int... I>
[[gnu::always_inline]] inline Register<T> InterleavedHalves(Register<T> a, Register<T> b, bool second,
                                                            std::integer_sequence<int, I...>) {
  constexpr int kSide = kBlockSide<T>;
  return second ? __builtin_shufflevector(a, b, (kSide / 2 + I / 2 + (I % 2) * kSide)...)
                : __builtin_shufflevector(a, b, (I / 2 + (I % 2) * kSide)...);
}

}  // namespace internal

// Rows are `from_pitch` and `to_pitch` elements apart; every element is xored with `flip`.
template <class T>
[[gnu::always_inline]] inline void TransposeBlock(const T* from, int64_t from_pitch, T* to, int64_t to_pitch,
                                                  T flip = 0) {
  constexpr int kSide = kBlockSide<T>;
  constexpr std::make_integer_sequence<int, kSide> kLanes{};
  Register<T> rows[kSide], next[kSide];
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) rows[i] = *reinterpret_cast<const Register<T>*>(from + i * from_pitch) ^ flip;
  // Each pass moves one bit of the number of an element's row to that of its column.
#pragma GCC unroll 4
  for (int pass = kSide; pass > 1; pass /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kSide / 2; ++i) {
      next[2 * i] = internal::InterleavedHalves<T>(rows[i], rows[i + kSide / 2], false, kLanes);
      next[2 * i + 1] = internal::InterleavedHalves<T>(rows[i], rows[i + kSide / 2], true, kLanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) *reinterpret_cast<Register<T>*>(to + i * to_pitch) = rows[i];
}

}  // namespace npu
