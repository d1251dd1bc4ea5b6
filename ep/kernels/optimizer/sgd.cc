// A step of stochastic gradient descent, with momentum.
#include "ep/kernels/optimizer/update.h"

namespace npu::optimizer {
namespace {

template <class T>
struct SgdStep {
  using C = ComputeType<T>;
  T *param, *grad, *buffer;
  C rate{}, unscale{}, sign{}, decay{}, momentum{}, kept{};

  template <bool moves, bool scaled>
  void Run(int64_t begin, int64_t end, bool first, bool nesterov) const {
    const SgdStep s = *this;  // a local copy: stores in the loop cannot alias it
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const C w = Load(s.param[i]);
      C x = Gradient<scaled>(s.grad[i], s.unscale, s.sign) + s.decay * w;
      if constexpr (moves) {
        const C moved = first ? x : s.momentum * Load(s.buffer[i]) + s.kept * x;
        Store(s.buffer[i], moved);
        x = nesterov ? x + s.momentum * moved : moved;
      }
      Store(s.param[i], w - s.rate * x);
    }
  }
};

class SgdKernel final : public Kernel {
 public:
  explicit SgdKernel(const KernelInfo& info)
      : weight_decay_(info.attributes.Float("weight_decay")),
        momentum_(info.attributes.Float("momentum")),
        dampening_(info.attributes.Float("dampening")),
        nesterov_(info.attributes.Bool("nesterov")),
        maximize_(info.attributes.Bool("maximize")),
        first_(info.attributes.Bool("is_first_step")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView param = ctx.Input(0), grad = ctx.Input(1), buffer = ctx.Input(2);
    CheckLike("Sgd", "grad", grad, param);
    if (buffer) CheckLike("Sgd", "momentum_buffer", buffer, param);
    NPU_CHECK(ctx.Input(3), "[Sgd] expected the number lr");
    const DeviceNumber lr("Sgd", "lr", ctx.Input(3));
    const Scaling scaling("Sgd", ctx.Input(4), ctx.Input(5));
    const int64_t n = param.elements();
    DispatchTypes("Sgd", param.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      SgdStep<T> given{param.as<T>(), grad.as<T>(), buffer.as<T>()};
      given.sign = maximize_ ? C{-1} : C{1};
      given.decay = static_cast<C>(weight_decay_);
      given.momentum = static_cast<C>(momentum_);
      given.kept = static_cast<C>(1 - dampening_);
      if (n == 0) return;
      ctx.Launch("Sgd", [given, n, lr, scaling, first = first_, nesterov = nesterov_] {
        if (scaling.found_inf() != 0) return;
        SgdStep<T> update = given;
        update.rate = static_cast<C>(lr());
        update.unscale = static_cast<C>(scaling.scale());
        Decide(update.buffer != nullptr, [&](auto moves) {
          UpdateElements(n, update.unscale != 1, [&](int64_t begin, int64_t end, auto scaled) {
            update.template Run<moves, scaled>(begin, end, first, nesterov);
          });
        });
      });
    });
  }

 private:
  double weight_decay_, momentum_, dampening_;
  bool nesterov_, maximize_, first_;
};

NPU_ONNX_KERNEL(
    UpdateDef("Sgd",
              {Input("param", kAllFloats), Input("grad", kAllFloats), OptionalInput("momentum_buffer", kAllFloats),
               Input("lr", kNumber), OptionalInput("grad_scale", kNumber), OptionalInput("found_inf", kNumber)},
              {FloatAttribute("weight_decay", 0.0), FloatAttribute("momentum", 0.0), FloatAttribute("dampening", 0.0),
               IntAttribute("nesterov", 0), IntAttribute("maximize", 0), IntAttribute("is_first_step", 0)},
              MakeKernel<SgdKernel>));

}  // namespace
}  // namespace npu::optimizer
