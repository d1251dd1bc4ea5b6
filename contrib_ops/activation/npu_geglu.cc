// npu_geglu(self; dim, approximate, activate_left) -> y, gelu. The semantics are in npu_geglu.py.
#include "contrib_ops/activation/npu_geglu.h"

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/activation/gated.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUGeGlu::In;
using Out = nodes::NPUGeGlu::Out;

constexpr const char* kOp = "npu_geglu";

class GegluKernel final : public Kernel {
 public:
  explicit GegluKernel(const KernelInfo& info)
      : dim_(info.attributes.Int("dim")), activate_left_(info.attributes.Bool("activate_left")) {
    const int64_t approximate = info.attributes.Int("approximate");
    NPU_OP_CHECK(kOp, approximate == 0 || approximate == 1, "expected approximate 0 (erf) or 1 (tanh), got ",
                 approximate);
    tanh_ = approximate == 1;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, x, "expected the tensor self");
    const Halves halves = SplitHalves(kOp, x.shape, dim_);
    const TensorView y = ctx.Output(Out::y, x.dtype, halves.result);
    const TensorView gelu = ctx.Output(Out::gelu, x.dtype, halves.result);
    if (halves.result.Elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      if (tanh_) {
        Enqueue(ctx, x.as<T>(), y.as<T>(), gelu.as<T>(), halves, [](float v) { return GeluTanh(v); });
      } else {
        Enqueue(ctx, x.as<T>(), y.as<T>(), gelu.as<T>(), halves, [](float v) { return GeluErf(v); });
      }
    });
  }

 private:
  template <class T, class F>
  void Enqueue(OpContext& ctx, const T* in, T* y, T* gelu, const Halves& halves, F f) const {
    ctx.Launch(kOp, [in, y, gelu, f, outer = halves.outer, half = halves.half, left = activate_left_] {
      ForEachGatedBlock(outer, half, [=](int64_t first, int64_t second, int64_t result, int64_t count) {
        InBlock<T> gate, value;
        OutBlock<T> out;
        alignas(64) float activated[kRowBlock];
        const float* a = gate.Load(in + (left ? first : second), count);
        const float* b = value.Load(in + (left ? second : first), count);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) activated[i] = f(a[i]);
        if (gelu) FromFloat(activated, gelu + result, count);
        if (y) {
          float* r = out.Values(y + result);
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) r[i] = b[i] * activated[i];
          out.Commit(y + result, count);
        }
      });
    });
  }

  int64_t dim_;
  bool activate_left_;
  bool tanh_ = true;
};

NPU_KERNEL(NPUGeGlu, GegluKernel);

}  // namespace
}  // namespace npu
