// Dispatch by the type of numbers.
#pragma once

#include <ATen/Dispatch.h>

#include <type_traits>

namespace npu::aten {

// Calls f with a number of the C++ type of `dtype`; false: `dtype` is not a type of numbers.
template <class F>
bool DispatchNumbers(at::ScalarType dtype, F&& f) {
  switch (dtype) {
#define NPU_CASE(T, name)    \
  case at::ScalarType::name: \
    f(T{});                  \
    return true;
    AT_FORALL_SCALAR_TYPES_AND2(Half, BFloat16, NPU_CASE)
#undef NPU_CASE
    default:
      return false;
  }
}
template <class F>
bool DispatchFloats(at::ScalarType dtype, F&& f) {
  bool known = false;
  DispatchNumbers(dtype, [&]<class T>(T number) {
    if constexpr (!std::is_integral_v<T>) {
      f(number);
      known = true;
    }
  });
  return known;
}
inline bool IsRealFloat(at::ScalarType dtype) {
  return DispatchFloats(dtype, [](auto) {});
}
inline bool IsNumber(at::ScalarType dtype) {
  return DispatchNumbers(dtype, [](auto) {});
}

// The type in which numbers of type T are computed.
template <class T>
using Real = std::conditional_t<std::is_integral_v<T> || std::is_same_v<T, double>, T, float>;

}  // namespace npu::aten
