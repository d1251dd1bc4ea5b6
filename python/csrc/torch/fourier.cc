// Fourier transforms over several dimensions: one of the kernel of ONNX's DFT along each.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// torch's names of scales: none, 1 / sqrt(n), 1 / n.
enum Normalization : int64_t { kNone = 0, kByRoot = 1, kByCount = 2 };

// Pairs [..., 2] or real numbers [..., 1], transformed along `dim`. The kernel divides an inverse by its length.
at::Tensor TransformAlong(const at::Tensor& numbers, int64_t dim, bool inverse, bool onesided, int64_t length) {
  return KernelCall("DFT")
      .In(Dense(numbers))
      .HostScalar(length)
      .HostScalar(dim)
      .Set("inverse", int64_t{inverse})
      .Set("onesided", int64_t{onesided})
      .One();
}
at::Tensor TransformAll(at::Tensor pairs, at::IntArrayRef dims, bool inverse) {
  for (const int64_t dim : dims) pairs = TransformAlong(pairs, dim, inverse, /*onesided=*/false, pairs.size(dim));
  return pairs;
}

int64_t ElementsAlong(const at::Tensor& signal, at::IntArrayRef dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= signal.size(dim);
  return count;
}

// `count` is the number of elements of a transform; an inverse one has been divided by it.
at::Tensor ScaledTransform(const at::Tensor& pairs, int64_t normalization, int64_t count, bool inverse) {
  const auto n = static_cast<double>(count);
  const double wanted = normalization == kNone ? 1 : normalization == kByRoot ? 1 / std::sqrt(n) : 1 / n;
  const double scale = inverse ? wanted * n : wanted;
  return scale == 1 ? pairs : pairs * scale;
}

void CheckTransform(const char* op, const at::Tensor& self, at::IntArrayRef dims) {
  TORCH_CHECK(KernelCall("DFT").Takes(0, c10::toRealValueType(self.scalar_type())), op,
              " expected numbers of float types, got ", self.scalar_type());
  for (const int64_t dim : dims)
    TORCH_CHECK(dim >= 0 && dim < self.dim(), op, " expected dimensions from 0 to ", self.dim() - 1, ", got ", dims);
}

at::Tensor ComplexToComplex(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization, bool forward) {
  TORCH_CHECK(self.is_complex(), "_fft_c2c expected complex numbers, got ", self.scalar_type());
  CheckTransform("_fft_c2c", self, dims);
  if (dims.empty() || self.numel() == 0) return self.clone();
  const at::Tensor pairs = TransformAll(at::view_as_real(self.resolve_conj()), dims, !forward);
  return at::view_as_complex(ScaledTransform(pairs, normalization, ElementsAlong(self, dims), !forward));
}

at::Tensor RealToComplex(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization, bool onesided) {
  TORCH_CHECK(self.is_floating_point() && !dims.empty(), "_fft_r2c expected floats and a dimension, got ",
              self.scalar_type(), " and ", dims);
  CheckTransform("_fft_r2c", self, dims);
  const int64_t last = dims.back();
  at::Tensor pairs = TransformAlong(self.unsqueeze(-1), last, /*inverse=*/false, onesided, self.size(last));
  pairs = TransformAll(pairs, dims.slice(0, dims.size() - 1), /*inverse=*/false);
  return at::view_as_complex(ScaledTransform(pairs, normalization, ElementsAlong(self, dims), /*inverse=*/false));
}

at::Tensor ComplexToReal(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization, int64_t length) {
  TORCH_CHECK(self.is_complex() && !dims.empty(), "_fft_c2r expected complex numbers and a dimension, got ",
              self.scalar_type(), " and ", dims);
  CheckTransform("_fft_c2r", self, dims);
  const at::IntArrayRef others = dims.slice(0, dims.size() - 1);
  const at::Tensor pairs = TransformAll(at::view_as_real(self.resolve_conj()), others, /*inverse=*/true);
  const at::Tensor real = TransformAlong(pairs, dims.back(), /*inverse=*/true, /*onesided=*/true, length).squeeze(-1);
  return ScaledTransform(real, normalization, ElementsAlong(self, others) * length, /*inverse=*/true);
}

at::Tensor& IntoOutput(at::Tensor& out, const at::Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}
at::Tensor& ComplexToComplexOut(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization, bool forward,
                                at::Tensor& out) {
  return IntoOutput(out, ComplexToComplex(self, dims, normalization, forward));
}
at::Tensor& RealToComplexOut(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization, bool onesided,
                             at::Tensor& out) {
  return IntoOutput(out, RealToComplex(self, dims, normalization, onesided));
}
at::Tensor& ComplexToRealOut(const at::Tensor& self, at::IntArrayRef dims, int64_t normalization, int64_t length,
                             at::Tensor& out) {
  return IntoOutput(out, ComplexToReal(self, dims, normalization, length));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_fft_c2c", &ComplexToComplex);
  m.impl("_fft_c2c.out", &ComplexToComplexOut);
  m.impl("_fft_r2c", &RealToComplex);
  m.impl("_fft_r2c.out", &RealToComplexOut);
  m.impl("_fft_c2r", &ComplexToReal);
  m.impl("_fft_c2r.out", &ComplexToRealOut);
}

}  // namespace
}  // namespace npu::aten
