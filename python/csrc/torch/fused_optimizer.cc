// Steps of optimizers (fused=True) in one launch for each parameter.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// A number on the host or on the device; the step reads it on the device.
class Number {
 public:
  Number(double value) : value_(value) {}
  Number(const char* op, const char* name, const MaybeTensor& t) {
    if (!Has(t)) return;
    TORCH_CHECK(t->numel() == 1 && t->scalar_type() == at::kFloat && (t->is_privateuseone() || t->is_cpu()), "[", op,
                "] expected ", name, " to be one float32, got ", t->numel(), " of ", t->scalar_type(), " on ",
                t->device());
    if (t->is_cpu()) {
      value_ = t->item<double>();
    } else {
      on_device_ = *t;
    }
  }

  void Give(KernelCall& call, const at::Tensor& param) {
    if (value_ && (!on_device_.defined() || on_device_.device() != param.device()))
      on_device_ = ScalarTensor(*value_, at::kDouble, param);  // once for the parameters of a device
    on_device_.defined() ? call.In(on_device_) : call.Absent();
  }

 private:
  std::optional<double> value_;
  at::Tensor on_device_;
};

// GradScaler's inputs: gradients are divided by the scale, and the step is skipped if an infinity was found.
struct Scaling {
  Number scale, found_inf;

  Scaling(const char* op, const MaybeTensor& grad_scale, const MaybeTensor& found)
      : scale(op, "grad_scale", grad_scale), found_inf(op, "found_inf", found) {}
};

// An updated tensor in dense form: if it is not dense, a copy that is written back at the end.
class Updated {
 public:
  explicit Updated(const at::Tensor& tensor) : tensor_(tensor), dense_(tensor.contiguous()) {}

  void Give(KernelCall& call) const {
    dense_.mutable_data_ptr();  // a pending lazy copy is made before the write
    call.In(dense_);
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
void CheckParameter(const char* op, const KernelCall& call, const at::Tensor& param) {
  TORCH_CHECK(param.is_privateuseone() && call.Takes(0, param.scalar_type()), "[", op,
              "] expected parameters of real floats on an npu, got ", param.scalar_type(), " on ", param.device());
}

template <bool decoupled>  // AdamW: weight decay is separate from the gradient
void Adam(const char* op, at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
          at::TensorList max_squares, at::TensorList steps, Number lr, double beta1, double beta2, double weight_decay,
          double epsilon, bool amsgrad, bool maximize, Scaling scaling) {
  CheckCount(op, "grads", grads.size(), params.size());
  CheckCount(op, "exp_avgs", averages.size(), params.size());
  CheckCount(op, "exp_avg_sqs", squares.size(), params.size());
  CheckCount(op, "state_steps", steps.size(), params.size());
  if (amsgrad) CheckCount(op, "max_exp_avg_sqs", max_squares.size(), params.size());
  for (size_t k = 0; k < params.size(); ++k) {
    const at::Tensor& param = params[k];
    KernelCall call("Adam", "npu.aten");
    CheckParameter(op, call, param);
    CheckLike(op, "grads", grads[k], param);
    CheckLike(op, "exp_avgs", averages[k], param);
    CheckLike(op, "exp_avg_sqs", squares[k], param);
    if (amsgrad) CheckLike(op, "max_exp_avg_sqs", max_squares[k], param);
    if (param.numel() == 0) continue;
    Number step(op, "state_steps", steps[k]);
    const Updated p(param), g(grads[k]), m(averages[k]), v(squares[k]), most(amsgrad ? max_squares[k] : squares[k]);
    for (const Updated* updated : {&p, &g, &m, &v}) updated->Give(call);
    amsgrad ? most.Give(call) : static_cast<void>(call.Absent());
    for (Number* number : {&step, &lr, &scaling.scale, &scaling.found_inf}) number->Give(call, param);
    call.Set("beta1", beta1)
        .Set("beta2", beta2)
        .Set("weight_decay", weight_decay)
        .Set("eps", epsilon)
        .Set("decoupled", int64_t{decoupled})
        .Set("maximize", int64_t{maximize})
        .Run(0);
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
         Number lr, double dampening, bool nesterov, bool maximize, bool is_first_step, Scaling scaling) {
  constexpr const char* kOp = "_fused_sgd_";
  CheckCount(kOp, "grads", grads.size(), params.size());
  const bool moves = !momenta.empty();
  if (moves) CheckCount(kOp, "momentum_buffer_list", momenta.size(), params.size());
  for (size_t k = 0; k < params.size(); ++k) {
    const at::Tensor& param = params[k];
    KernelCall call("Sgd", "npu.aten");
    CheckParameter(kOp, call, param);
    CheckLike(kOp, "grads", grads[k], param);
    if (moves) CheckLike(kOp, "momentum_buffer_list", momenta[k], param);
    if (param.numel() == 0) continue;
    const Updated p(param), g(grads[k]), b(moves ? momenta[k] : param);
    for (const Updated* updated : {&p, &g}) updated->Give(call);
    moves ? b.Give(call) : static_cast<void>(call.Absent());
    for (Number* number : {&lr, &scaling.scale, &scaling.found_inf}) number->Give(call, param);
    call.Set("weight_decay", weight_decay)
        .Set("momentum", momentum)
        .Set("dampening", dampening)
        .Set("nesterov", int64_t{nesterov})
        .Set("maximize", int64_t{maximize})
        .Set("is_first_step", int64_t{is_first_step})
        .Run(0);
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

void Adagrad(at::TensorList params, at::TensorList grads, at::TensorList sums, at::TensorList steps, Number lr,
             double rate_decay, double weight_decay, double epsilon, bool maximize, Scaling scaling) {
  constexpr const char* kOp = "_fused_adagrad_";
  CheckCount(kOp, "grads", grads.size(), params.size());
  CheckCount(kOp, "state_sums", sums.size(), params.size());
  CheckCount(kOp, "state_steps", steps.size(), params.size());
  for (size_t k = 0; k < params.size(); ++k) {
    const at::Tensor& param = params[k];
    KernelCall call("Adagrad", "npu.aten");
    CheckParameter(kOp, call, param);
    CheckLike(kOp, "grads", grads[k], param);
    CheckLike(kOp, "state_sums", sums[k], param);
    if (param.numel() == 0) continue;
    Number step(kOp, "state_steps", steps[k]);
    const Updated p(param), g(grads[k]), sum(sums[k]);
    for (const Updated* updated : {&p, &g, &sum}) updated->Give(call);
    for (Number* number : {&step, &lr, &scaling.scale, &scaling.found_inf}) number->Give(call, param);
    call.Set("lr_decay", rate_decay)
        .Set("weight_decay", weight_decay)
        .Set("eps", epsilon)
        .Set("maximize", int64_t{maximize})
        .Run(0);
    for (const Updated* updated : {&p, &g, &sum}) updated->Store();
  }
}
void FusedAdagrad(at::TensorList params, at::TensorList grads, at::TensorList sums, at::TensorList steps, double lr,
                  double rate_decay, double weight_decay, double epsilon, bool maximize, const MaybeTensor& grad_scale,
                  const MaybeTensor& found_inf) {
  Adagrad(params, grads, sums, steps, lr, rate_decay, weight_decay, epsilon, maximize,
          Scaling("_fused_adagrad_", grad_scale, found_inf));
}
void FusedAdagradTensorLr(at::TensorList params, at::TensorList grads, at::TensorList sums, at::TensorList steps,
                          const at::Tensor& lr, double rate_decay, double weight_decay, double epsilon, bool maximize,
                          const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  Adagrad(params, grads, sums, steps, Number("_fused_adagrad_", "lr", lr), rate_decay, weight_decay, epsilon, maximize,
          Scaling("_fused_adagrad_", grad_scale, found_inf));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_fused_adam_", &FusedAdam<false>);
  m.impl("_fused_adam_.tensor_lr", &FusedAdamTensorLr<false>);
  m.impl("_fused_adamw_", &FusedAdam<true>);
  m.impl("_fused_adamw_.tensor_lr", &FusedAdamTensorLr<true>);
  m.impl("_fused_sgd_", &FusedSgd);
  m.impl("_fused_sgd_.tensor_lr", &FusedSgdTensorLr);
  m.impl("_fused_adagrad_", &FusedAdagrad);
  m.impl("_fused_adagrad_.tensor_lr", &FusedAdagradTensorLr);
}

}  // namespace
}  // namespace npu::aten
