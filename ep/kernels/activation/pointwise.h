// y = f(x) for every element of the first input: the whole kernel of a pointwise activation.
#pragma once

#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// f: float -> float, branch-free. y may be x.
template <class F>
void LaunchPointwise(OpContext& ctx, const char* op, F f) {
  const TensorView x = ctx.Input(0);
  NPU_OP_CHECK(op, x, "expected the tensor self");
  const TensorView y = ctx.Output(0, x.dtype, x.shape);
  const int64_t n = x.elements();
  if (n == 0) return;
  DispatchFloats(op, x.dtype, [&](auto tag) {
    using T = decltype(tag);
    ctx.Launch(op, [source = x.as<T>(), destination = y.as<T>(), n, f] {
      ParallelFor(n, kSerialElements, [&](int64_t begin, int64_t end) {
        InBlock<T> in;
        OutBlock<T> out;
        ForEachBlock(end - begin, [&](int64_t offset, int64_t count) {
          const float* v = in.Load(source + begin + offset, count);
          float* r = out.Values(destination + begin + offset);
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) r[i] = f(v[i]);
          out.Commit(destination + begin + offset, count);
        });
      });
    });
  });
}

}  // namespace npu
