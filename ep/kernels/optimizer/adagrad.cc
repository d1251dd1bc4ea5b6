// A step of Adagrad, whose rate decays with the number of steps.
#include <cmath>

#include "ep/kernels/optimizer/update.h"

namespace npu::optimizer {
namespace {

template <class T>
struct AdagradStep {
  using C = ComputeType<T>;
  T *param, *grad, *sum;
  C rate{}, unscale{}, sign{}, decay{}, epsilon{};

  template <bool scaled>
  void Run(int64_t begin, int64_t end) const {
    const AdagradStep s = *this;  // a local copy: stores in the loop cannot alias it
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const C w = Load(s.param[i]);
      const C x = Gradient<scaled>(s.grad[i], s.unscale, s.sign) + s.decay * w;
      const C sum_of_squares = Load(s.sum[i]) + x * x;
      Store(s.sum[i], sum_of_squares);
      Store(s.param[i], w - s.rate * x / (std::sqrt(sum_of_squares) + s.epsilon));
    }
  }
};

class AdagradKernel final : public Kernel {
 public:
  explicit AdagradKernel(const KernelInfo& info)
      : rate_decay_(info.attributes.Float("lr_decay")),
        weight_decay_(info.attributes.Float("weight_decay")),
        epsilon_(info.attributes.Float("eps")),
        maximize_(info.attributes.Bool("maximize")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView param = ctx.Input(0), grad = ctx.Input(1), sum = ctx.Input(2);
    CheckLike("Adagrad", "grad", grad, param);
    CheckLike("Adagrad", "state_sum", sum, param);
    NPU_CHECK(ctx.Input(3) && ctx.Input(4), "[Adagrad] expected the numbers step and lr");
    const DeviceNumber step("Adagrad", "step", ctx.Input(3)), lr("Adagrad", "lr", ctx.Input(4));
    const Scaling scaling("Adagrad", ctx.Input(5), ctx.Input(6));
    const int64_t n = param.elements();
    DispatchTypes("Adagrad", param.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      AdagradStep<T> given{param.as<T>(), grad.as<T>(), sum.as<T>()};
      given.sign = maximize_ ? C{-1} : C{1};
      given.decay = static_cast<C>(weight_decay_);
      given.epsilon = static_cast<C>(epsilon_);
      if (n == 0) return;
      ctx.Launch("Adagrad", [given, n, step, lr, scaling, rate_decay = rate_decay_] {
        if (scaling.found_inf() != 0) return;
        AdagradStep<T> update = given;
        update.rate = static_cast<C>(lr() / (1 + (step() - 1) * rate_decay));
        update.unscale = static_cast<C>(scaling.scale());
        UpdateElements(n, update.unscale != 1,
                       [&](int64_t begin, int64_t end, auto scaled) { update.template Run<scaled>(begin, end); });
      });
    });
  }

 private:
  double rate_decay_, weight_decay_, epsilon_;
  bool maximize_;
};

NPU_ONNX_KERNEL(UpdateDef("Adagrad",
                          {Input("param", kAllFloats), Input("grad", kAllFloats), Input("state_sum", kAllFloats),
                           Input("step", kNumber), Input("lr", kNumber), OptionalInput("grad_scale", kNumber),
                           OptionalInput("found_inf", kNumber)},
                          {FloatAttribute("lr_decay", 0.0), FloatAttribute("weight_decay", 0.0),
                           FloatAttribute("eps", 1e-10), IntAttribute("maximize", 0)},
                          MakeKernel<AdagradKernel>));

}  // namespace
}  // namespace npu::optimizer
