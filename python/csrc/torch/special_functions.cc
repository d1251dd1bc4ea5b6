// Special functions, next floats and common divisors.
#include <ATen/ops/gcd_meta.h>
#include <ATen/ops/gcd_ops.h>
#include <ATen/ops/heaviside_meta.h>
#include <ATen/ops/heaviside_ops.h>
#include <ATen/ops/i0_meta.h>
#include <ATen/ops/i0_ops.h>
#include <ATen/ops/igamma_meta.h>
#include <ATen/ops/igamma_ops.h>
#include <ATen/ops/igammac_meta.h>
#include <ATen/ops/igammac_ops.h>
#include <ATen/ops/lcm_meta.h>
#include <ATen/ops/lcm_ops.h>
#include <ATen/ops/nextafter_meta.h>
#include <ATen/ops/nextafter_ops.h>
#include <ATen/ops/polygamma_meta.h>
#include <ATen/ops/polygamma_ops.h>
#include <ATen/ops/signbit_meta.h>
#include <ATen/ops/signbit_ops.h>
#include <ATen/ops/special_bessel_j0_meta.h>
#include <ATen/ops/special_bessel_j0_ops.h>
#include <ATen/ops/special_bessel_j1_meta.h>
#include <ATen/ops/special_bessel_j1_ops.h>
#include <ATen/ops/special_bessel_y0_meta.h>
#include <ATen/ops/special_bessel_y0_ops.h>
#include <ATen/ops/special_bessel_y1_meta.h>
#include <ATen/ops/special_bessel_y1_ops.h>
#include <ATen/ops/special_entr_meta.h>
#include <ATen/ops/special_entr_ops.h>
#include <ATen/ops/special_erfcx_meta.h>
#include <ATen/ops/special_erfcx_ops.h>
#include <ATen/ops/special_i0e_meta.h>
#include <ATen/ops/special_i0e_ops.h>
#include <ATen/ops/special_i1_meta.h>
#include <ATen/ops/special_i1_ops.h>
#include <ATen/ops/special_i1e_meta.h>
#include <ATen/ops/special_i1e_ops.h>
#include <ATen/ops/special_log_ndtr_meta.h>
#include <ATen/ops/special_log_ndtr_ops.h>
#include <ATen/ops/special_modified_bessel_i0_meta.h>
#include <ATen/ops/special_modified_bessel_i0_ops.h>
#include <ATen/ops/special_modified_bessel_i1_meta.h>
#include <ATen/ops/special_modified_bessel_i1_ops.h>
#include <ATen/ops/special_modified_bessel_k0_meta.h>
#include <ATen/ops/special_modified_bessel_k0_ops.h>
#include <ATen/ops/special_modified_bessel_k1_meta.h>
#include <ATen/ops/special_modified_bessel_k1_ops.h>
#include <ATen/ops/special_ndtri_meta.h>
#include <ATen/ops/special_ndtri_ops.h>
#include <ATen/ops/special_scaled_modified_bessel_k0_meta.h>
#include <ATen/ops/special_scaled_modified_bessel_k0_ops.h>
#include <ATen/ops/special_scaled_modified_bessel_k1_meta.h>
#include <ATen/ops/special_scaled_modified_bessel_k1_ops.h>
#include <ATen/ops/special_spherical_bessel_j0_meta.h>
#include <ATen/ops/special_spherical_bessel_j0_ops.h>
#include <ATen/ops/special_xlog1py_meta.h>
#include <ATen/ops/special_xlog1py_ops.h>
#include <ATen/ops/special_zeta_meta.h>
#include <ATen/ops/special_zeta_ops.h>
#include <torch/library.h>

#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor& PolygammaOut(int64_t n, const at::Tensor& self, at::Tensor& out) {
  const Function function = n == 0 ? Aten("Digamma") : Aten("Polygamma", {{"n", static_cast<double>(n)}});
  return Elementwise<at::meta::structured_polygamma, at::_ops::polygamma_out>(function, {self}, out, n, self);
}

at::Tensor& SignbitOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_signbit>(out, self);
  if (c10::isIntegralType(dtype, /*includeBool=*/true) && !Aten("SignBit").Takes(dtype))
    return out.zero_();  // unsigned
  return FunctionInto(Aten("SignBit"), dtype, {self}, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("polygamma.out", &PolygammaOut);
  m.impl("signbit.out", &SignbitOut);
#define NPU_UNARY(op, type)                                                                               \
  m.impl(                                                                                                 \
      #op ".out", +[](const at::Tensor& self, at::Tensor& out) -> at::Tensor& {                           \
        return Elementwise<at::meta::structured_##op, at::_ops::op##_out>(Aten(type), {self}, out, self); \
      })
#define NPU_BINARY(op, type)                                                                                    \
  m.impl(                                                                                                       \
      #op ".out", +[](const at::Tensor& self, const at::Tensor& other, at::Tensor& out) -> at::Tensor& {        \
        return Elementwise<at::meta::structured_##op, at::_ops::op##_out>(Aten(type), {self, other}, out, self, \
                                                                          other);                               \
      })
  NPU_UNARY(i0, "I0");
  NPU_UNARY(special_bessel_j0, "J0");
  NPU_UNARY(special_bessel_j1, "J1");
  NPU_UNARY(special_bessel_y0, "Y0");
  NPU_UNARY(special_bessel_y1, "Y1");
  NPU_UNARY(special_entr, "Entropy");
  NPU_UNARY(special_erfcx, "ScaledErfc");
  NPU_UNARY(special_i0e, "ScaledI0");
  NPU_UNARY(special_i1, "I1");
  NPU_UNARY(special_i1e, "ScaledI1");
  NPU_UNARY(special_log_ndtr, "LogNormalCdf");
  NPU_UNARY(special_modified_bessel_i0, "I0");
  NPU_UNARY(special_modified_bessel_i1, "I1");
  NPU_UNARY(special_modified_bessel_k0, "K0");
  NPU_UNARY(special_modified_bessel_k1, "K1");
  NPU_UNARY(special_ndtri, "NormalQuantile");
  NPU_UNARY(special_scaled_modified_bessel_k0, "ScaledK0");
  NPU_UNARY(special_scaled_modified_bessel_k1, "ScaledK1");
  NPU_UNARY(special_spherical_bessel_j0, "SphericalJ0");
  NPU_BINARY(gcd, "Gcd");
  NPU_BINARY(heaviside, "Heaviside");
  NPU_BINARY(igamma, "Igamma");
  NPU_BINARY(igammac, "Igammac");
  NPU_BINARY(lcm, "Lcm");
  NPU_BINARY(nextafter, "NextAfter");
  NPU_BINARY(special_xlog1py, "XLog1pY");
  NPU_BINARY(special_zeta, "Zeta");
#undef NPU_BINARY
#undef NPU_UNARY
}

}  // namespace
}  // namespace npu::aten
