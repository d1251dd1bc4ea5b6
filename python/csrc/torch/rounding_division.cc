// Divisions whose quotient is rounded: Python's //, and C's.
#include <ATen/ops/div_meta.h>
#include <ATen/ops/div_ops.h>
#include <torch/library.h>

#include <cmath>
#include <type_traits>

#include "ep/runtime/error.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// The quotient whose remainder has the divisor's sign, exact where a / b is not.
template <class R>
R FloorQuotient(R a, R b) {
  if (b == 0) return a / b;
  const R rest = std::fmod(a, b);
  R quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(R{0}, a / b);
  const R whole = std::floor(quotient);
  return quotient - whole > R{0.5} ? whole + 1 : whole;
}

template <class T>
T Quotient(T a, T b, bool down) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) Fail(ErrorCode::kDeviceError, "ZeroDivisionError: an integer was divided by 0");
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));  // the least number wraps
      if (down && a % b != 0 && (a < 0) != (b < 0)) return static_cast<T>(a / b - 1);
    }
    return static_cast<T>(a / b);
  } else {
    return down ? FloorQuotient(a, b) : std::trunc(a / b);
  }
}

at::Tensor& DivModeOut(const at::Tensor& a, const at::Tensor& b, std::optional<c10::string_view> mode,
                       at::Tensor& out) {
  if (!mode) return at::_ops::div_out::call(a, b, out);
  const at::ScalarType dtype = InferElementwise<at::meta::structured_div_Tensor_mode>(out, a, b, mode);
  if (out.numel() == 0) return out;
  if (!IsNumber(dtype)) return FallBack<at::_ops::div_out_mode>(a, b, mode, out);
  const bool down = *mode == "floor";
  // 72.1875 / 72.2 is less than 1, though 72.2 is 72.1875 in float16.
  return MapInto</*integers=*/true>(
      "div", ComputeType(dtype, a, b), out, [down](auto x, auto y) { return Quotient(x, y, down); }, a, b);
}

at::Tensor& FloorDivideOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return at::_ops::div_out_mode::call(a, b, "floor", out);
}
at::Tensor FloorDivide(const at::Tensor& a, const at::Tensor& b) {
  return at::_ops::div_Tensor_mode::call(a, b, "floor");
}
at::Tensor& FloorDivideInPlace(at::Tensor& a, const at::Tensor& b) {
  return at::_ops::div__Tensor_mode::call(a, b, "floor");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("div.out_mode", &DivModeOut);
  m.impl("floor_divide", &FloorDivide);
  m.impl("floor_divide.out", &FloorDivideOut);
  m.impl("floor_divide_.Tensor", &FloorDivideInPlace);
}

}  // namespace
}  // namespace npu::aten
