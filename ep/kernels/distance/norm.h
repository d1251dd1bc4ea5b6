// Distances between the rows of two matrices in any p-norm: shared by torch's cdist and its gradient.
#pragma once

#include <cmath>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/vector_math.h"

namespace npu {

enum class NormKind { kZero, kOne, kTwo, kInfinite, kOther };  // kZero counts the differences

// f(std::integral_constant<NormKind, …>) for the p-norm.
template <class F>
void DispatchNorm(double p, const F& f) {
  using enum NormKind;
  if (p == 0) return f(std::integral_constant<NormKind, kZero>{});
  if (p == 1) return f(std::integral_constant<NormKind, kOne>{});
  if (p == 2) return f(std::integral_constant<NormKind, kTwo>{});
  if (std::isinf(p)) return f(std::integral_constant<NormKind, kInfinite>{});
  f(std::integral_constant<NormKind, kOther>{});
}

// base^p for base >= 0. For float it is exp(p log(base)), which vectorises; its error of |p log(base)| roundings is
// divided by p again by the root of a sum of such powers.
template <class C>
C Power(C base, C p) {
  if constexpr (std::is_same_v<C, float>) {
    return math::Exp(p * math::Log(base));
  } else {
    return std::pow(base, p);
  }
}

// Batches of matrices of equal width: first [batch, rows, width], second [batch, others, width].
struct MatrixPair {
  TensorView first, second;
  int64_t batch, rows, others, width;

  MatrixPair(const char* op, OpContext& ctx) : first(ctx.Input(0)), second(ctx.Input(1)) {
    const Shape &a = first.shape, &b = second.shape;
    NPU_OP_CHECK(op, first && second && first.dtype == second.dtype, "expected two tensors of one dtype, got ",
                 NameOf(first.dtype), " and ", NameOf(second.dtype));
    NPU_OP_CHECK(op, a.rank() == 3 && b.rank() == 3 && a[0] == b[0] && a[2] == b[2],
                 "expected first [B, P, M] and second [B, R, M], got ", a, " and ", b);
    batch = a[0], rows = a[1], others = b[1], width = a[2];
  }
  Shape DistanceShape() const { return {batch, rows, others}; }
};

inline double CheckedPower(const char* op, const Attributes& attributes) {
  const double p = attributes.Float("p");
  NPU_OP_CHECK(op, p >= 0, "expected p of 0 or more, got ", p);
  return p;
}

}  // namespace npu
