// Matmuls on the matrix unit. A transposed operand is read in place.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/mm_meta.h>
#include <torch/library.h>

#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// A matrix as a kernel reads it: dense memory and whether it holds the transpose.
struct Operand {
  at::Tensor dense;
  int64_t transposed = 0;

  explicit Operand(const at::Tensor& matrix) {
    const at::Tensor turned = matrix.t();
    if (!matrix.is_contiguous() && turned.is_contiguous()) {
      dense = turned;
      transposed = 1;
    } else {
      dense = Dense(matrix);
    }
  }
};

KernelCall Product(const at::Tensor& a, const at::Tensor& b) {
  const Operand left(a), right(b);
  KernelCall call("Gemm");
  call.In(left.dense).In(right.dense).Set("transA", left.transposed).Set("transB", right.transposed);
  return call;
}

void CheckOneType(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "mat1 and mat2 must have the same dtype, but got ", a.scalar_type(),
              " and ", b.scalar_type());
}

bool Takes(const at::Tensor& t) { return KernelCall("Gemm").Takes(0, t.scalar_type()); }

// Products of complex matrices, as four of their parts; of small integers in int32, which has the same low bits.
template <class Multiply>
bool OtherProduct(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, const Multiply& multiply) {
  if (a.is_complex()) {
    const ComplexParts x = ComplexParts::Of(a), y = ComplexParts::Of(b);
    ComplexParts{multiply(x.re, y.re) - multiply(x.im, y.im), multiply(x.re, y.im) + multiply(x.im, y.re)}.Into(out);
    return true;
  }
  if (Takes(a) || !at::isIntegralType(a.scalar_type(), /*includeBool=*/false)) return false;
  out.copy_(multiply(a.to(at::kInt), b.to(at::kInt)));
  return true;
}

at::Tensor& MmOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  Infer<at::meta::structured_mm>(out, a, b);
  CheckOneType(a, b);
  if (out.numel() == 0) return out;
  if (OtherProduct(a, b, out, [](const at::Tensor& x, const at::Tensor& y) { return x.mm(y); })) return out;
  if (!Takes(a)) return FallBack<at::_ops::mm_out>(a, b, out);
  if (a.size(1) == 0) return out.zero_();
  Product(a, b).Into(out);
  return out;
}

// beta * self + alpha * product, for types that no kernel scales.
at::Tensor Scaled(const at::Tensor& self, const c10::Scalar& beta, const at::Tensor& product,
                  const c10::Scalar& alpha) {
  const auto scaled = [&](const at::Tensor& t, const c10::Scalar& by) {
    return at::isIntegralType(t.scalar_type(), /*includeBool=*/false) ? t.mul(by.toLong()) : t.mul(by);
  };
  const at::Tensor added = scaled(product, alpha);
  return beta.equal(0) ? added : scaled(self, beta).add(added);
}

// As in torch, the factors of integer tensors are truncated.
double Factor(const c10::Scalar& s, at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/false) ? static_cast<double>(s.toLong()) : s.toDouble();
}

// beta * self + alpha * (a @ b). With a beta of 0, self is ignored, NaN included.
at::Tensor& AddmmOut(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const c10::Scalar& beta,
                     const c10::Scalar& alpha, at::Tensor& out) {
  Infer<at::meta::structured_addmm>(out, self, a, b, beta, alpha);
  CheckOneType(a, b);
  if (out.numel() == 0) return out;
  if (!Takes(a) || beta.isComplex() || alpha.isComplex()) return out.copy_(Scaled(self, beta, a.mm(b), alpha));
  Product(a, b)
      .In(Dense(self))
      .Set("alpha", Factor(alpha, out.scalar_type()))
      .Set("beta", Factor(beta, out.scalar_type()))
      .Into(out);
  return out;
}

at::Tensor& AddmvOut(const at::Tensor& self, const at::Tensor& matrix, const at::Tensor& vector,
                     const c10::Scalar& beta, const c10::Scalar& alpha, at::Tensor& out) {
  Infer<at::meta::structured_addmv>(out, self, matrix, vector, beta, alpha);
  if (out.numel() == 0) return out;
  if (!Takes(matrix) || beta.isComplex() || alpha.isComplex())
    return out.copy_(Scaled(self, beta, matrix.mm(vector.unsqueeze(1)).squeeze(1), alpha));
  const at::Tensor addend = Dense(self).expand(out.sizes()).contiguous().unsqueeze(1);
  Product(matrix, vector.unsqueeze(1))
      .In(addend)
      .Set("alpha", Factor(alpha, out.scalar_type()))
      .Set("beta", Factor(beta, out.scalar_type()))
      .Into(out);
  return out;
}

at::Tensor& BmmOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  Infer<at::meta::structured_bmm>(out, a, b);
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "expected scalar type ", a.scalar_type(), " but found ",
              b.scalar_type());
  if (out.numel() == 0) return out;
  if (OtherProduct(a, b, out, [](const at::Tensor& x, const at::Tensor& y) { return x.bmm(y); })) return out;
  if (!Takes(a)) return FallBack<at::_ops::bmm_out>(a, b, out);
  if (a.size(2) == 0) return out.zero_();
  KernelCall("MatMul").In(Dense(a)).In(Dense(b)).Into(out);
  return out;
}

at::Tensor& BaddbmmOut(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const c10::Scalar& beta,
                       const c10::Scalar& alpha, at::Tensor& out) {
  Infer<at::meta::structured_baddbmm>(out, self, a, b, beta, alpha);
  if (out.numel() == 0) return out;
  if (!Takes(a) || !a.is_floating_point()) return out.copy_(Scaled(self, beta, a.bmm(b), alpha));
  const at::ScalarType dtype = AccumulateType(a.scalar_type());
  const auto scaled = [&](at::Tensor t, const c10::Scalar& by) {
    t = Dense(t, dtype);
    return by.equal(1) ? t : KernelCall("Mul").In(t).In(ScalarTensor(by, dtype, out)).One();
  };
  const at::Tensor product = scaled(KernelCall("MatMul").In(Dense(a, dtype)).In(Dense(b, dtype)).One(), alpha);
  if (beta.equal(0)) return out.copy_(product);
  return BinaryInto("Add", dtype, product, scaled(self, beta), out);
}

at::Tensor Dot(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 1 && b.dim() == 1 && a.numel() == b.numel(),
              "inconsistent tensor size, expected two vectors of one length, got ", a.sizes(), " and ", b.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              a.scalar_type(), " and ", b.scalar_type());
  if (!Takes(a) || a.numel() == 0) return (a * b).sum(a.scalar_type());
  return KernelCall("MatMul").In(Dense(a), {1, a.numel()}).In(Dense(b), {b.numel(), 1}).One().reshape({});
}

at::Tensor Vdot(const at::Tensor& a, const at::Tensor& b) { return a.is_complex() ? a.conj().dot(b) : a.dot(b); }

// beta * self + alpha * the sum of products of a batch, which is one product of longer matrices.
at::Tensor Addbmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const c10::Scalar& beta,
                  const c10::Scalar& alpha) {
  TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
              "addbmm expected batches of matrices that can be multiplied, got ", a.sizes(), " and ", b.sizes());
  return self.addmm(a.transpose(0, 1).flatten(1, 2), b.flatten(0, 1), beta, alpha);
}
at::Tensor& AddbmmInPlace(at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const c10::Scalar& beta,
                          const c10::Scalar& alpha) {
  const at::Tensor sum = Addbmm(self, a, b, beta, alpha);
  TORCH_CHECK(sum.sizes() == self.sizes(), "addbmm_ expected a tensor of shape ", sum.sizes(), ", got ", self.sizes());
  return self.copy_(sum);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("mm.out", &MmOut);
  m.impl("addmm.out", &AddmmOut);
  m.impl("addmv.out", &AddmvOut);
  m.impl("bmm.out", &BmmOut);
  m.impl("baddbmm.out", &BaddbmmOut);
  m.impl("addbmm", &Addbmm);
  m.impl("addbmm_", &AddbmmInPlace);
  m.impl("dot", &Dot);
  m.impl("vdot", &Vdot);
}

}  // namespace
}  // namespace npu::aten
