// Binary elementwise operators. An operator is a struct with `kName`, `Types` and
// `static R Apply(C, C)`, where R is C or bool; optionally `static void Check(const C* b, n)`, which
// throws on divisors it cannot take.
#pragma once

#include <memory>

#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"

namespace npu {

// n elements of out from a and b, each moving by its step, 0 or 1. `out` may be `a` or `b`.
using BinaryRow = void (*)(const void* a, int64_t a_step, const void* b, int64_t b_step, void* out, int64_t n);

inline constexpr int64_t kHalfBlock = 512;  // elements of a 16-bit row held as float at a time

namespace internal {

// Checks the inputs, allocates output 0 and launches `row` over its rows.
void LaunchBinary(OpContext& ctx, const char* op, DType out_dtype, BinaryRow row, int64_t grain);

template <class Op, class C, class R>
void BinarySteps(const C* a, int64_t a_step, const C* b, int64_t b_step, R* out, int64_t n) {
  if constexpr (requires { Op::Check(b, n); }) Op::Check(b, b_step == 0 ? 1 : n);
  if (a_step != 0 && b_step != 0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::Apply(a[i], b[i]));
  } else if (a_step != 0) {
    const C s = *b;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::Apply(a[i], s));
  } else if (b_step != 0) {
    const C s = *a;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::Apply(s, b[i]));
  } else {
    std::fill(out, out + n, static_cast<R>(Op::Apply(*a, *b)));
  }
}

template <class Op, class T>
void BinaryLoop(const void* a_data, int64_t a_step, const void* b_data, int64_t b_step, void* out_data, int64_t n) {
  using C = ComputeType<T>;
  using Result = decltype(Op::Apply(C{}, C{}));
  constexpr bool kPredicate = std::is_same_v<Result, bool>;
  const T* a = static_cast<const T*>(a_data);
  const T* b = static_cast<const T*>(b_data);
  if constexpr (!kIsHalf<T>) {
    using R = std::conditional_t<kPredicate, uint8_t, T>;
    BinarySteps<Op>(a, a_step, b, b_step, static_cast<R*>(out_data), n);
  } else {
    float fa[kHalfBlock], fb[kHalfBlock];
    if (a_step == 0) fa[0] = ToFloat(*a);
    if (b_step == 0) fb[0] = ToFloat(*b);
    for (int64_t i = 0; i < n; i += kHalfBlock) {
      const int64_t count = std::min(kHalfBlock, n - i);
      if (a_step != 0) ToFloat(a + i, fa, count);
      if (b_step != 0) ToFloat(b + i, fb, count);
      if constexpr (kPredicate) {
        BinarySteps<Op>(fa, a_step, fb, b_step, static_cast<uint8_t*>(out_data) + i, count);
      } else {
        float result[kHalfBlock];
        BinarySteps<Op>(fa, a_step, fb, b_step, result, count);
        FromFloat(result, static_cast<T*>(out_data) + i, count);
      }
    }
  }
}

}  // namespace internal

template <class Op>
class BinaryKernel : public Kernel {
 public:
  explicit BinaryKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const DType dtype = ctx.Input(0).dtype;
    DispatchTypes(Op::kName, dtype, typename Op::Types{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      constexpr bool kPredicate = std::is_same_v<decltype(Op::Apply(C{}, C{})), bool>;
      internal::LaunchBinary(ctx, Op::kName, kPredicate ? DType::kBool : dtype, &internal::BinaryLoop<Op, T>,
                             kCheapGrain);
    });
  }
};

// The definition of an operator whose inputs and output share one type.
template <class Op>
OpDef ArithmeticDef(int since, int until) {
  constexpr DTypeSet kTypes = SetOf(typename Op::Types{});
  return {
      .type = Op::kName,
      .since = since,
      .until = until,
      .inputs = {Input("A", kTypes), Input("B", kTypes)},
      .outputs = {Output("C", kTypes)},
      .may_alias = {{0, 0}, {1, 0}},
      .make = MakeKernel<BinaryKernel<Op>>,
  };
}

}  // namespace npu
