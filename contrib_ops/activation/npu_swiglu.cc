// npu_swiglu(self; dim) -> y. The semantics are in npu_swiglu.py.
#include "contrib_ops/activation/npu_swiglu.h"

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/activation/gated.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUSwiGlu::In;
using Out = nodes::NPUSwiGlu::Out;

constexpr const char* kOp = "npu_swiglu";

class SwigluKernel final : public Kernel {
 public:
  explicit SwigluKernel(const KernelInfo& info) : dim_(info.attributes.Int("dim")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, x, "expected the tensor self");
    const Halves halves = SplitHalves(kOp, x.shape, dim_);
    const TensorView y = ctx.Output(Out::y, x.dtype, halves.result);
    if (y.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [in = x.as<T>(), out = y.as<T>(), outer = halves.outer, half = halves.half] {
        ForEachGatedBlock(outer, half, [=](int64_t first, int64_t second, int64_t result, int64_t count) {
          InBlock<T> gate, value;
          OutBlock<T> product;
          const float* a = gate.Load(in + first, count);
          const float* b = value.Load(in + second, count);
          float* r = product.Values(out + result);
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) r[i] = SiluOf<T>(a[i]) * b[i];
          product.Commit(out + result, count);
        });
      });
    });
  }

 private:
  int64_t dim_;
};

NPU_KERNEL(NPUSwiGlu, SwigluKernel);

}  // namespace
}  // namespace npu
