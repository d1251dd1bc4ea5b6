// The gradient of the losses with respect to log_probs.
#include "ep/kernels/loss/ctc.h"

namespace npu {
namespace {

using ctc::kImpossible;
using ctc::LogSum;

// From alpha [times, width]; `beta` holds the backward log-probabilities of the states at the current time step.
template <class T, class R = ComputeType<T>>
void Backward(const ctc::Sequence<T>& s, const R* alpha, int64_t width, R scale, T* grad) {
  const R loss = s.Loss(alpha, width);
  std::vector<R> beta(static_cast<size_t>(s.states)), after(beta), paths(static_cast<size_t>(s.labels));
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  for (int64_t t = s.times - 1; t >= 0; --t) {
    std::swap(beta, after);
    std::fill(paths.begin(), paths.end(), kImpossible<R>);
    const bool last = t == s.times - 1;
    for (int64_t i = 0; i < s.states; ++i) {
      R sum = last ? (i >= s.states - 2 ? R{0} : kImpossible<R>) : after[at(i)];
      if (!last && i + 1 < s.states) sum = LogSum(sum, after[at(i + 1)]);
      if (!last && s.Skips(i + 2)) sum = LogSum(sum, after[at(i + 2)]);
      beta[at(i)] = sum + s.LogProb(t, i);
      R& path = paths[at(s.Label(i))];
      path = LogSum(path, alpha[t * width + i] + beta[at(i)]);
    }
    for (int64_t c = 0; c < s.labels; ++c) {
      const R log_prob = Upcast(s.log_probs[t * s.stride + c]);
      grad[t * s.stride + c] = Rounded<T>(scale * (ctc::ExpOf(log_prob) - ctc::ExpOf(paths[at(c)] + loss - log_prob)));
    }
  }
}

class CtcLossGradKernel : public Kernel {
 public:
  explicit CtcLossGradKernel(const KernelInfo& info)
      : blank_(info.attributes.Int("blank")), zero_infinity_(info.attributes.Bool("zero_infinity")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView grad = ctx.Input(0), alphas = ctx.Input(5);
    const ctc::Problem p("ctc_loss_backward", blank_, ctx.Input(1), ctx.Input(2), ctx.Input(3), ctx.Input(4));
    NPU_CHECK(grad && grad.dtype == p.log_probs.dtype && grad.shape == Shape{p.batch},
              "[ctc_loss_backward] expected the losses' gradients ", NameOf(p.log_probs.dtype), " of shape ",
              Shape{p.batch}, ", got ", NameOf(grad.dtype), " of ", grad.shape);
    NPU_CHECK(alphas && alphas.dtype == ComputeDType(p.log_probs.dtype) && alphas.shape == p.AlphaShape(),
              "[ctc_loss_backward] expected log_alpha ", NameOf(ComputeDType(p.log_probs.dtype)), " of shape ",
              p.AlphaShape(), ", got ", NameOf(alphas.dtype), " of ", alphas.shape);
    const TensorView out = ctx.Output(0, p.log_probs.dtype, p.log_probs.shape);
    if (out.elements() == 0) return;
    DispatchTypes("ctc_loss_backward", p.log_probs.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using R = ComputeType<T>;
      ctx.Launch("ctc_loss_backward", [p, zero_infinity = zero_infinity_, alpha = alphas.as<const R>(),
                                       scale = grad.as<const T>(), to = out.as<T>()] {
        ParallelFor(p.batch, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const ctc::Sequence<T> sequence(p, b);
            const R* forward = alpha + b * p.times * p.states;
            T* y = to + b * p.labels;
            const bool none = zero_infinity && sequence.Loss(forward, p.states) == -kImpossible<R>;
            for (int64_t t = none ? 0 : sequence.times; t < p.times; ++t)
              std::fill_n(y + t * sequence.stride, p.labels, Rounded<T>(R{0}));
            if (!none) Backward(sequence, forward, p.states, Upcast(scale[b]), y);
          }
        });
      });
    });
  }

 private:
  int64_t blank_;
  bool zero_infinity_;
};

OpDef CtcLossGradDef() {
  OpDef def = ctc::Def("CtcLossGrad",
                       {Input("grad", kAllFloats), Input("log_probs", kAllFloats), Input("targets", kInt64),
                        HostInput("input_lengths", kInt64), HostInput("target_lengths", kInt64),
                        Input("log_alpha", {DType::kFloat32, DType::kFloat64})},
                       {Output("log_probs_grad", kAllFloats)}, MakeKernel<CtcLossGradKernel>);
  def.attributes.push_back(IntAttribute("zero_infinity", 0));
  return def;
}

NPU_ONNX_KERNEL(CtcLossGradDef());

}  // namespace
}  // namespace npu
