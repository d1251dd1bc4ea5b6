// Conversions from floating point to integers that are defined for every value.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace npu {

// Truncates toward zero. A value that does not fit, NaN included, gives the result of the x86 conversion that a C cast
// compiles to, as in ONNX Runtime's CPU provider (except for uint32): the minimum int32 (int64 for 32- and 64-bit
// unsigned and for int64), truncated to the width of To. Branch-free.
template <class To, class From>
To SafeCast(From value) {
  static_assert(std::is_integral_v<To>);
  if constexpr (std::is_integral_v<From>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<To, uint64_t>) {
    constexpr From kHalf = static_cast<From>(0x1p63);
    const bool high = value >= kHalf;
    const int64_t low = SafeCast<int64_t>(high ? value - kHalf : value);
    return static_cast<uint64_t>(low) + (high ? uint64_t{1} << 63 : 0);
  } else {
    using Wide = std::conditional_t<(sizeof(To) < 4 || std::is_same_v<To, int32_t>), int32_t, int64_t>;
    constexpr From kLimit = sizeof(Wide) == 4 ? static_cast<From>(0x1p31) : static_cast<From>(0x1p63);
    const bool fits = value >= -kLimit && value < kLimit;
    const Wide wide = static_cast<Wide>(fits ? value : From{0});
    return static_cast<To>(fits ? wide : std::numeric_limits<Wide>::min());
  }
}

}  // namespace npu
