// Numbers in device memory that say where a kernel reads or writes: indices, lengths, counts. They are data and may be
// anything, and they may change while the kernel runs: another stream, or an output that shares their memory, may write
// to them. So what was checked must be what is used. Either each use checks the number that it has read
// (CheckedNumbers), or the kernel keeps a copy of what it has checked, read once (ReadOnce).
#pragma once

#include <cstdint>
#include <type_traits>

#include "ep/runtime/kernel_api.h"

namespace npu {

// The number at an address that others may write to. A compiler may read a plain variable as often as it likes, for
// example instead of keeping it in a register between a check and a use; the empty instruction hides from it where the
// number is from. Unlike a read that is atomic or volatile, it leaves the loop around it as fast as it was.
template <class T>
inline T ReadOnce(const T* address) {
  static_assert(std::is_arithmetic_v<T>);
  T number = *address;
  if constexpr (std::is_integral_v<T>) {
    asm("" : "+r"(number));
  } else {
    asm("" : "+m"(number));
  }
  return number;
}

// The number at index i of a tensor of int32 or int64, read once.
inline int64_t ReadOnce(const TensorView& numbers, int64_t i) {
  if (numbers.dtype == DType::kInt32) return ReadOnce(numbers.as<const int32_t>() + i);
  return ReadOnce(numbers.as<const int64_t>() + i);
}

template <class Index>
class CheckedNumbers {
 public:
  // Numbers in [low, high) are right; another is refused with "[op] expected WHAT in [low, high), got …".
  CheckedNumbers(const char* op, const char* what, const Index* numbers, int64_t low, int64_t high)
      : op_(op), what_(what), numbers_(numbers), low_(low), high_(high) {}

  // Refuses a call whose numbers are wrong before it has written anything.
  void CheckFirst(int64_t count) const {
    for (int64_t i = 0; i < count; ++i) (*this)[i];
  }
  // The number, which is right.
  int64_t operator[](int64_t i) const {
    const int64_t number = ReadOnce(numbers_ + i);
    const auto from_low = [this](int64_t n) { return static_cast<uint64_t>(n) - static_cast<uint64_t>(low_); };
    if (from_low(number) >= from_low(high_)) [[unlikely]]
      Refuse(op_, what_, low_, high_, number, i);
    return number;
  }

 private:
  // Gets values, not `this`: an object whose address is taken, even for an error, stays in memory.
  [[noreturn, gnu::cold, gnu::noinline]] static void Refuse(const char* op, const char* what, int64_t low, int64_t high,
                                                            int64_t number, int64_t i) {
    Fail(ErrorCode::kInvalidArgument, "[", op, "] expected ", what, " in [", low, ", ", high, "), got ", number, " at ",
         i);
  }

  const char *op_, *what_;
  const Index* numbers_;
  int64_t low_, high_;
};

}  // namespace npu
