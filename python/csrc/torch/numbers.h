// Dispatch by the type of numbers, and dense output tensors.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <type_traits>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/storage.h"

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

// `out` itself if it is dense and of `dtype`, else new memory to be copied into it.
inline at::Tensor DenseTarget(const at::Tensor& out, at::ScalarType dtype) {
  return out.is_contiguous() && out.scalar_type() == dtype ? out : Empty(out.sizes(), dtype, out);
}
inline at::Tensor& Deliver(const at::Tensor& target, at::Tensor& out) {
  return target.is_same(out) ? out : out.copy_(target);
}

}  // namespace npu::aten
