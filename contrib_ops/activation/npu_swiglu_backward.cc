// npu_swiglu_backward(grad_output, self; dim) -> y. The semantics are in npu_swiglu_backward.py.
#include "contrib_ops/activation/npu_swiglu_backward.h"

#include "ep/kernels/activation/gated.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

using In = nodes::NPUSwiGluBackward::In;
using Out = nodes::NPUSwiGluBackward::Out;

constexpr const char* kOp = "npu_swiglu_backward";

class SwigluBackwardKernel final : public Kernel {
 public:
  explicit SwigluBackwardKernel(const KernelInfo& info) : dim_(info.attributes.Int("dim")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView dy = ctx.Input(In::grad_output), x = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, dy && x, "expected the tensors grad_output and self");
    const Halves halves = SplitHalves(kOp, x.shape, dim_);
    NPU_OP_CHECK(kOp, dy.shape == halves.result && dy.dtype == x.dtype, "expected grad_output ", NameOf(x.dtype), " ",
                 halves.result, ", got ", NameOf(dy.dtype), " ", dy.shape);
    const TensorView dx = ctx.Output(Out::y, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [=, up = dy.as<T>(), in = x.as<T>(), out = dx.as<T>()] {
        ForEachGatedBlock(halves.outer, halves.half, [=](int64_t first, int64_t second, int64_t result, int64_t count) {
          InBlock<T> incoming, gate, value;
          OutBlock<T> dgate, dvalue;
          const float* d = incoming.Load(up + result, count);
          const float* a = gate.Load(in + first, count);
          const float* b = value.Load(in + second, count);
          float* da = dgate.Values(out + first);
          float* db = dvalue.Values(out + second);
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) {
            const float s = math::Sigmoid(a[i]);
            const float silu = a[i] * s;
            const float slope = s + silu * (1.0f - s);
            da[i] = d[i] * b[i] * slope;
            db[i] = d[i] * silu;
          }
          dgate.Commit(out + first, count);
          dvalue.Commit(out + second, count);
        });
      });
    });
  }

 private:
  int64_t dim_;
};

NPU_KERNEL(NPUSwiGluBackward, SwigluBackwardKernel);

}  // namespace
}  // namespace npu
