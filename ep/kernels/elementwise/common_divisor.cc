// The greatest common divisor and the least common multiple of integers, which torch defines as not negative.
#include <type_traits>

#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

// In 64 bits, where the least integer of each smaller type has an absolute value.
template <class C>
uint64_t Size(C x) {
  if constexpr (std::is_signed_v<C>) {
    if (x < 0) return 0 - static_cast<uint64_t>(x);
  }
  return static_cast<uint64_t>(x);
}

uint64_t Divisor(uint64_t a, uint64_t b) {
  while (b != 0) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

NPU_ONNX_KERNEL(AtenFunction<"Gcd", IntegerTypes>(
    [](auto a, auto b) { return static_cast<decltype(a)>(Divisor(Size(a), Size(b))); }, {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"Lcm", IntegerTypes>(
    [](auto a, auto b) {
      const uint64_t divisor = Divisor(Size(a), Size(b));
      return static_cast<decltype(a)>(divisor == 0 ? 0 : Size(a) / divisor * Size(b));
    },
    {"self", "other"}));

}  // namespace
}  // namespace npu
