// A step of Adam and of AdamW, which applies weight decay separately from the gradient.
#include <algorithm>
#include <cmath>

#include "ep/kernels/optimizer/update.h"

namespace npu::optimizer {
namespace {

template <class T>
struct AdamStep {
  using C = ComputeType<T>;
  T *param, *grad, *average, *square, *greatest;
  C step_size{}, root{}, decay{}, unscale{}, beta1{}, beta2{}, epsilon{}, sign{};

  template <bool decoupled, bool amsgrad, bool scaled>
  void Run(int64_t begin, int64_t end) const {
    const AdamStep s = *this;  // a local copy: stores in the loop cannot alias it
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      C w = Load(s.param[i]), x = Gradient<scaled>(s.grad[i], s.unscale, s.sign);
      if constexpr (decoupled) {
        w -= s.decay * w;
      } else {
        x += s.decay * w;
      }
      const C before = Load(s.average[i]);
      const C mean = before + (1 - s.beta1) * (x - before);
      const C mean_square = s.beta2 * Load(s.square[i]) + (1 - s.beta2) * x * x;
      Store(s.average[i], mean);
      Store(s.square[i], mean_square);
      C divisor = mean_square;
      if constexpr (amsgrad) {
        divisor = std::max(Load(s.greatest[i]), mean_square);
        Store(s.greatest[i], divisor);
      }
      Store(s.param[i], w - s.step_size * mean / (std::sqrt(divisor) / s.root + s.epsilon));
    }
  }
};

class AdamKernel final : public Kernel {
 public:
  explicit AdamKernel(const KernelInfo& info)
      : beta1_(info.attributes.Float("beta1")),
        beta2_(info.attributes.Float("beta2")),
        weight_decay_(info.attributes.Float("weight_decay")),
        epsilon_(info.attributes.Float("eps")),
        decoupled_(info.attributes.Bool("decoupled")),
        maximize_(info.attributes.Bool("maximize")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView param = ctx.Input(0), grad = ctx.Input(1), average = ctx.Input(2), square = ctx.Input(3),
                     greatest = ctx.Input(4);
    CheckLike("Adam", "grad", grad, param);
    CheckLike("Adam", "exp_avg", average, param);
    CheckLike("Adam", "exp_avg_sq", square, param);
    if (greatest) CheckLike("Adam", "max_exp_avg_sq", greatest, param);
    NPU_CHECK(ctx.Input(5) && ctx.Input(6), "[Adam] expected the numbers step and lr");
    const DeviceNumber step("Adam", "step", ctx.Input(5)), lr("Adam", "lr", ctx.Input(6));
    const Scaling scaling("Adam", ctx.Input(7), ctx.Input(8));
    const int64_t n = param.elements();
    DispatchTypes("Adam", param.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      AdamStep<T> given{param.as<T>(), grad.as<T>(), average.as<T>(), square.as<T>(), greatest.as<T>()};
      given.beta1 = static_cast<C>(beta1_);
      given.beta2 = static_cast<C>(beta2_);
      given.epsilon = static_cast<C>(epsilon_);
      given.sign = maximize_ ? C{-1} : C{1};
      if (n == 0) return;
      ctx.Launch("Adam", [given, n, step, lr, scaling, beta1 = beta1_, beta2 = beta2_, weight_decay = weight_decay_,
                          decoupled = decoupled_] {
        if (scaling.found_inf() != 0) return;
        AdamStep<T> update = given;
        const double rate = lr(), count = step();
        update.step_size = static_cast<C>(rate / (1 - std::pow(beta1, count)));
        update.root = static_cast<C>(std::sqrt(1 - std::pow(beta2, count)));
        update.decay = static_cast<C>(decoupled ? rate * weight_decay : weight_decay);
        update.unscale = static_cast<C>(scaling.scale());
        Decide(decoupled, [&](auto beside) {
          Decide(update.greatest != nullptr, [&](auto amsgrad) {
            UpdateElements(n, update.unscale != 1, [&](int64_t begin, int64_t end, auto scaled) {
              update.template Run<beside, amsgrad, scaled>(begin, end);
            });
          });
        });
      });
    });
  }

 private:
  double beta1_, beta2_, weight_decay_, epsilon_;
  bool decoupled_, maximize_;
};

NPU_ONNX_KERNEL(
    UpdateDef("Adam",
              {Input("param", kAllFloats), Input("grad", kAllFloats), Input("exp_avg", kAllFloats),
               Input("exp_avg_sq", kAllFloats), OptionalInput("max_exp_avg_sq", kAllFloats), Input("step", kNumber),
               Input("lr", kNumber), OptionalInput("grad_scale", kNumber), OptionalInput("found_inf", kNumber)},
              {FloatAttribute("beta1", 0.9), FloatAttribute("beta2", 0.999), FloatAttribute("weight_decay", 0.0),
               FloatAttribute("eps", 1e-8), IntAttribute("decoupled", 0), IntAttribute("maximize", 0)},
              MakeKernel<AdamKernel>));

}  // namespace
}  // namespace npu::optimizer
