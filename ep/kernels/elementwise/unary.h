// Unary elementwise operators. An operator is a function object with `kName`, `Types`, `kGrain` and
// `R operator()(C) const`, where R is C or bool; it is default constructible, or made from the
// KernelInfo when it has attributes. `void Row(const float*, float*, n) const` replaces the call per
// element where a whole row has a better form.
#pragma once

#include <memory>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"

namespace npu {

namespace internal {

template <class Op, class C, class R>
void UnarySteps(const Op& op, const C* x, R* y, int64_t n) {
  if constexpr (requires { op.Row(x, y, n); }) {
    op.Row(x, y, n);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<R>(op(x[i]));
  }
}

template <class Op, class T, class Out>
void UnaryLoop(const Op& op, const T* x, Out* y, int64_t n) {
  if constexpr (!kIsHalf<T>) {
    UnarySteps(op, x, y, n);
  } else {
    InBlock<T> in;
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const float* values = in.Load(x + begin, count);
      if constexpr (std::is_same_v<Out, T>) {
        OutBlock<T> out;
        UnarySteps(op, values, out.Values(y + begin), count);
        out.Commit(y + begin, count);
      } else {
        UnarySteps(op, values, y + begin, count);
      }
    });
  }
}

}  // namespace internal

template <class Op>
class UnaryKernel : public Kernel {
 public:
  explicit UnaryKernel(const KernelInfo& info) {
    if constexpr (requires { Op(info); }) op_ = Op(info);
  }
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    DispatchTypes(Op::kName, x.dtype, typename Op::Types{}, [&](auto type) {
      using T = decltype(type);
      constexpr bool kPredicate = std::is_same_v<decltype(op_(ComputeType<T>{})), bool>;
      using Out = std::conditional_t<kPredicate, uint8_t, T>;
      const TensorView y = ctx.Output(0, kPredicate ? DType::kBool : x.dtype, x.shape);
      const int64_t n = x.elements();
      if (n == 0) return;
      ctx.Launch(Op::kName, [op = op_, px = x.as<const T>(), py = y.as<Out>(), n] {
        ParallelFor(n, Op::kGrain,
                    [&](int64_t begin, int64_t end) { internal::UnaryLoop(op, px + begin, py + begin, end - begin); });
      });
    });
  }

 private:
  Op op_;
};

template <class Op>
OpDef UnaryDef(int since, int until, const char* input = "X", const char* output = "Y") {
  constexpr DTypeSet kTypes = SetOf(typename Op::Types{});
  return {
      .type = Op::kName,
      .since = since,
      .until = until,
      .inputs = {Input(input, kTypes)},
      .outputs = {Output(output, kTypes)},
      .may_alias = {{0, 0}},
      .make = MakeKernel<UnaryKernel<Op>>,
  };
}

}  // namespace npu
