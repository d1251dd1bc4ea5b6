// Functions of one float that no ONNX kernel computes.
#include <ATen/ops/erfinv_meta.h>
#include <ATen/ops/erfinv_ops.h>
#include <ATen/ops/exp2_meta.h>
#include <ATen/ops/exp2_ops.h>
#include <ATen/ops/expm1_meta.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/log10_meta.h>
#include <ATen/ops/log10_ops.h>
#include <ATen/ops/log1p_meta.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log2_meta.h>
#include <ATen/ops/log2_ops.h>
#include <ATen/ops/trunc_meta.h>
#include <ATen/ops/trunc_ops.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// Giles' approximation ("Approximating the erfinv function", 2011), good to float, then Halley's method.
double InverseErf(double y) {
  if (!(y > -1 && y < 1)) return y == 1 || y == -1 ? std::copysign(HUGE_VAL, y) : std::nan("");
  double w = -std::log((1 - y) * (1 + y)), p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08;
    for (const double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                           -0.00417768164, 0.246640727, 1.50140941})
      p = c + p * w;
  } else {
    w = std::sqrt(w) - 3;
    p = -0.000200214257;
    for (const double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
                           1.00167406, 2.83297682})
      p = c + p * w;
  }
  double x = p * y;
  constexpr int kMaxSteps = 6;  // one or two, but for tails beyond float's
  for (int i = 0; i < kMaxSteps; ++i) {
    // Near 0 of erf, else of the tail, whose digits erf has lost.
    const double error = std::fabs(y) < 0.5 ? std::erf(x) - y
                         : y > 0            ? (1 - y) - std::erfc(x)
                                            : std::erfc(-x) - (1 + y);
    const double step = error / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
    x -= step / (1 + x * step);
    if (std::fabs(step) <= std::numeric_limits<double>::epsilon() * std::fabs(x)) break;
  }
  return x;
}

template <class Meta, class Op, class F>
at::Tensor& Map(const char* op, const at::Tensor& self, at::Tensor& out, F f) {
  const at::ScalarType dtype = InferElementwise<Meta>(out, self);
  if (out.numel() == 0) return out;
  if (!at::isFloatingType(dtype) || !IsNumber(dtype)) return FallBack<Op>(self, out);
  const at::Tensor x = Dense(self, dtype), y = DenseTarget(out, dtype);
  DispatchNumbers(dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(x.const_data_ptr());
    LaunchMap<T>(op, y, [=](int64_t i) { return static_cast<T>(f(static_cast<Real<T>>(from[i]))); });
  });
  return Deliver(y, out);
}

at::Tensor& ErfinvOut(const at::Tensor& self, at::Tensor& out) {
  return Map<at::meta::structured_erfinv, at::_ops::erfinv_out>("erfinv", self, out,
                                                                [](auto x) { return InverseErf(x); });
}
at::Tensor& TruncOut(const at::Tensor& self, at::Tensor& out) {
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    at::native::resize_output(out, self.sizes());
    return out.copy_(self);
  }
  return Map<at::meta::structured_trunc, at::_ops::trunc_out>("trunc", self, out, [](auto x) { return std::trunc(x); });
}
at::Tensor& Exp2Out(const at::Tensor& self, at::Tensor& out) {
  return Map<at::meta::structured_exp2, at::_ops::exp2_out>("exp2", self, out, [](auto x) { return std::exp2(x); });
}
at::Tensor& Expm1Out(const at::Tensor& self, at::Tensor& out) {
  return Map<at::meta::structured_expm1, at::_ops::expm1_out>("expm1", self, out, [](auto x) { return std::expm1(x); });
}
at::Tensor& Log10Out(const at::Tensor& self, at::Tensor& out) {
  return Map<at::meta::structured_log10, at::_ops::log10_out>("log10", self, out, [](auto x) { return std::log10(x); });
}
at::Tensor& Log1pOut(const at::Tensor& self, at::Tensor& out) {
  return Map<at::meta::structured_log1p, at::_ops::log1p_out>("log1p", self, out, [](auto x) { return std::log1p(x); });
}
at::Tensor& Log2Out(const at::Tensor& self, at::Tensor& out) {
  return Map<at::meta::structured_log2, at::_ops::log2_out>("log2", self, out, [](auto x) { return std::log2(x); });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("erfinv.out", &ErfinvOut);
  m.impl("trunc.out", &TruncOut);
  m.impl("exp2.out", &Exp2Out);
  m.impl("expm1.out", &Expm1Out);
  m.impl("log10.out", &Log10Out);
  m.impl("log1p.out", &Log1pOut);
  m.impl("log2.out", &Log2Out);
}

}  // namespace
}  // namespace npu::aten
