// Steps of optimizers (fused=True) in one launch for each parameter.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// A number that the host knows, or one on the device.
struct Number {
  double value = 0;
  const float* address = nullptr;

  Number(double v) : value(v) {}
  Number(const char* op, const char* name, const MaybeTensor& t) {
    if (!t || !t->defined()) return;
    TORCH_CHECK(t->numel() == 1 && t->scalar_type() == at::kFloat && (t->is_privateuseone() || t->is_cpu()), "[", op,
                "] expected ", name, " to be one float32, got ", t->numel(), " of ", t->scalar_type(), " on ",
                t->device());
    if (t->is_cpu()) {
      value = t->item<double>();
    } else {
      address = static_cast<const float*>(t->const_data_ptr());
    }
  }

  double operator()() const { return address == nullptr ? value : *address; }
};

// What GradScaler hands on: gradients are divided by the scale, and nothing happens where an infinity was found.
struct Scaling {
  Number scale, found_inf;

  Scaling(const char* op, const MaybeTensor& grad_scale, const MaybeTensor& found)
      : scale(op, "grad_scale", grad_scale), found_inf(op, "found_inf", found) {
    if (scale.address == nullptr && scale.value == 0) scale.value = 1;
  }
};

// The elements of what is updated, in order: a copy that goes back at the end where the tensor is not dense.
class Updated {
 public:
  explicit Updated(const at::Tensor& tensor) : tensor_(tensor), dense_(tensor.contiguous()) {}

  template <class T>
  T* data() const {
    return static_cast<T*>(dense_.mutable_data_ptr());
  }
  void Store() const {
    if (!dense_.is_same(tensor_)) tensor_.copy_(dense_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor dense_;
};

void CheckLike(const char* op, const char* name, const at::Tensor& t, const at::Tensor& param) {
  TORCH_CHECK(t.device() == param.device() && t.scalar_type() == param.scalar_type() && t.sizes() == param.sizes(), "[",
              op, "] expected ", name, " like the parameter, ", param.scalar_type(), param.sizes(), " on ",
              param.device(), ", got ", t.scalar_type(), t.sizes(), " on ", t.device());
}
void CheckCount(const char* op, const char* name, size_t count, size_t params) {
  TORCH_CHECK(count == params, "[", op, "] expected one of ", name, " for each of ", params, " parameters, got ",
              count);
}
void CheckParameter(const char* op, const at::Tensor& param) {
  TORCH_CHECK(param.is_privateuseone() && IsRealFloat(param.scalar_type()), "[", op,
              "] expected parameters of real floats on an npu, got ", param.scalar_type(), " on ", param.device());
}

// Runs f(i) for all elements of `param`, unless an infinity was found.
template <class F>
void LaunchUpdate(const char* op, const at::Tensor& param, const Number& found_inf, F make) {
  constexpr int64_t kGrain = 4096;
  StreamOf(param).Launch(op, [n = param.numel(), found_inf, make] {
    if (found_inf() != 0) return;
    const auto update = make();  // what is read once
    ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) update(i);
    });
  });
}

template <bool decoupled>  // AdamW: the weight decays beside the gradient
void Adam(const char* op, at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
          at::TensorList max_squares, at::TensorList steps, const Number& lr, double beta1, double beta2,
          double weight_decay, double epsilon, bool amsgrad, bool maximize, const Scaling& scaling) {
  CheckCount(op, "grads", grads.size(), params.size());
  CheckCount(op, "exp_avgs", averages.size(), params.size());
  CheckCount(op, "exp_avg_sqs", squares.size(), params.size());
  CheckCount(op, "state_steps", steps.size(), params.size());
  if (amsgrad) CheckCount(op, "max_exp_avg_sqs", max_squares.size(), params.size());
  for (size_t k = 0; k < params.size(); ++k) {
    const at::Tensor& param = params[k];
    CheckParameter(op, param);
    CheckLike(op, "grads", grads[k], param);
    CheckLike(op, "exp_avgs", averages[k], param);
    CheckLike(op, "exp_avg_sqs", squares[k], param);
    if (amsgrad) CheckLike(op, "max_exp_avg_sqs", max_squares[k], param);
    if (param.numel() == 0) continue;
    const Number step(op, "state_steps", steps[k]);
    const Updated p(param), g(grads[k]), m(averages[k]), v(squares[k]), most(amsgrad ? max_squares[k] : squares[k]);
    DispatchNumbers(param.scalar_type(), [&]<class T>(T) {
      using R = Real<T>;
      if constexpr (!std::is_integral_v<T>) {
        const auto make = [=, param = p.data<T>(), grad = g.template data<T>(), average = m.template data<T>(),
                           square = v.template data<T>(), greatest = most.template data<T>()] {
          const double rate = lr(), count = step(), scale = scaling.scale();
          const auto step_size = static_cast<R>(rate / (1 - std::pow(beta1, count)));
          const auto root = static_cast<R>(std::sqrt(1 - std::pow(beta2, count)));
          const auto decay = static_cast<R>(decoupled ? rate * weight_decay : weight_decay);
          return [=, unscale = static_cast<R>(scale), b1 = static_cast<R>(beta1), b2 = static_cast<R>(beta2),
                  eps = static_cast<R>(epsilon)](int64_t i) {
            R w = static_cast<R>(param[i]), x = static_cast<R>(grad[i]);
            if (unscale != 1) {
              x /= unscale;
              grad[i] = static_cast<T>(x);
            }
            if (maximize) x = -x;
            if (decoupled) {
              w -= decay * w;
            } else {
              x += decay * w;
            }
            const R mean = static_cast<R>(average[i]) + (1 - b1) * (x - static_cast<R>(average[i]));
            const R mean_square = b2 * static_cast<R>(square[i]) + (1 - b2) * x * x;
            average[i] = static_cast<T>(mean);
            square[i] = static_cast<T>(mean_square);
            R divisor = mean_square;
            if (amsgrad) {
              divisor = std::max(static_cast<R>(greatest[i]), mean_square);
              greatest[i] = static_cast<T>(divisor);
            }
            param[i] = static_cast<T>(w - step_size * mean / (std::sqrt(divisor) / root + eps));
          };
        };
        LaunchUpdate(op, param, scaling.found_inf, make);
      }
    });
    for (const Updated* updated : {&p, &g, &m, &v}) updated->Store();
    if (amsgrad) most.Store();
  }
}

template <bool decoupled>
void FusedAdam(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
               at::TensorList max_squares, at::TensorList steps, double lr, double beta1, double beta2,
               double weight_decay, double epsilon, bool amsgrad, bool maximize, const MaybeTensor& grad_scale,
               const MaybeTensor& found_inf) {
  constexpr const char* kOp = decoupled ? "_fused_adamw_" : "_fused_adam_";
  Adam<decoupled>(kOp, params, grads, averages, squares, max_squares, steps, lr, beta1, beta2, weight_decay, epsilon,
                  amsgrad, maximize, Scaling(kOp, grad_scale, found_inf));
}
template <bool decoupled>
void FusedAdamTensorLr(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
                       at::TensorList max_squares, at::TensorList steps, const at::Tensor& lr, double beta1,
                       double beta2, double weight_decay, double epsilon, bool amsgrad, bool maximize,
                       const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  constexpr const char* kOp = decoupled ? "_fused_adamw_" : "_fused_adam_";
  Adam<decoupled>(kOp, params, grads, averages, squares, max_squares, steps, Number(kOp, "lr", lr), beta1, beta2,
                  weight_decay, epsilon, amsgrad, maximize, Scaling(kOp, grad_scale, found_inf));
}

void Sgd(at::TensorList params, at::TensorList grads, at::TensorList momenta, double weight_decay, double momentum,
         const Number& lr, double dampening, bool nesterov, bool maximize, bool is_first_step, const Scaling& scaling) {
  constexpr const char* kOp = "_fused_sgd_";
  CheckCount(kOp, "grads", grads.size(), params.size());
  const bool moves = !momenta.empty();
  if (moves) CheckCount(kOp, "momentum_buffer_list", momenta.size(), params.size());
  for (size_t k = 0; k < params.size(); ++k) {
    const at::Tensor& param = params[k];
    CheckParameter(kOp, param);
    CheckLike(kOp, "grads", grads[k], param);
    if (moves) CheckLike(kOp, "momentum_buffer_list", momenta[k], param);
    if (param.numel() == 0) continue;
    const Updated p(param), g(grads[k]), b(moves ? momenta[k] : param);
    DispatchNumbers(param.scalar_type(), [&]<class T>(T) {
      using R = Real<T>;
      if constexpr (!std::is_integral_v<T>) {
        const auto make = [=, param = p.data<T>(), grad = g.template data<T>(), buffer = b.template data<T>()] {
          return [=, rate = static_cast<R>(lr()), unscale = static_cast<R>(scaling.scale()),
                  decay = static_cast<R>(weight_decay), mu = static_cast<R>(momentum),
                  kept = static_cast<R>(1 - dampening)](int64_t i) {
            R w = static_cast<R>(param[i]), x = static_cast<R>(grad[i]);
            if (unscale != 1) {
              x /= unscale;
              grad[i] = static_cast<T>(x);
            }
            if (maximize) x = -x;
            x += decay * w;
            if (moves) {
              const R moved = is_first_step ? x : mu * static_cast<R>(buffer[i]) + kept * x;
              buffer[i] = static_cast<T>(moved);
              x = nesterov ? x + mu * moved : moved;
            }
            param[i] = static_cast<T>(w - rate * x);
          };
        };
        LaunchUpdate(kOp, param, scaling.found_inf, make);
      }
    });
    p.Store();
    g.Store();
    if (moves) b.Store();
  }
}
void FusedSgd(at::TensorList params, at::TensorList grads, at::TensorList momenta, double weight_decay, double momentum,
              double lr, double dampening, bool nesterov, bool maximize, bool is_first_step,
              const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  Sgd(params, grads, momenta, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
      Scaling("_fused_sgd_", grad_scale, found_inf));
}
void FusedSgdTensorLr(at::TensorList params, at::TensorList grads, at::TensorList momenta, double weight_decay,
                      double momentum, const at::Tensor& lr, double dampening, bool nesterov, bool maximize,
                      bool is_first_step, const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  Sgd(params, grads, momenta, weight_decay, momentum, Number("_fused_sgd_", "lr", lr), dampening, nesterov, maximize,
      is_first_step, Scaling("_fused_sgd_", grad_scale, found_inf));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_fused_adam_", &FusedAdam<false>);
  m.impl("_fused_adam_.tensor_lr", &FusedAdamTensorLr<false>);
  m.impl("_fused_adamw_", &FusedAdam<true>);
  m.impl("_fused_adamw_.tensor_lr", &FusedAdamTensorLr<true>);
  m.impl("_fused_sgd_", &FusedSgd);
  m.impl("_fused_sgd_.tensor_lr", &FusedSgdTensorLr);
}

}  // namespace
}  // namespace npu::aten
