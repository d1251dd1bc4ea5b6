// The losses, and the log alpha that the gradient reads, stored in float if the operands are 16-bit: the terms added to
// it are relatively small.
#include "ep/kernels/loss/ctc.h"

namespace npu {
namespace {

using ctc::kImpossible;
using ctc::LogSum;

// alpha [times, width], including the states that a shorter target does not use.
template <class T, class R = ComputeType<T>>
void Forward(const ctc::Sequence<T>& s, R* alpha, int64_t times, int64_t width) {
  std::fill_n(alpha, times * width, kImpossible<R>);
  for (int64_t t = 0; t < s.times; ++t) {
    R* now = alpha + t * width;
    const R* before = now - width;
    for (int64_t i = 0; i < s.states; ++i) {
      R sum = t == 0 ? (i < 2 ? R{0} : kImpossible<R>) : before[i];
      if (t > 0 && i > 0) sum = LogSum(sum, before[i - 1]);
      if (t > 0 && s.Skips(i)) sum = LogSum(sum, before[i - 2]);
      now[i] = sum + s.LogProb(t, i);
    }
  }
}

class CtcLossKernel : public Kernel {
 public:
  explicit CtcLossKernel(const KernelInfo& info) : blank_(info.attributes.Int("blank")) {}

  void Compute(OpContext& ctx) const override {
    const ctc::Problem p("ctc_loss", blank_, ctx.Input(0), ctx.Input(1), ctx.Input(2), ctx.Input(3));
    const TensorView losses = ctx.Output(0, p.log_probs.dtype, {p.batch});
    const TensorView alphas = ctx.Output(1, ComputeDType(p.log_probs.dtype), p.AlphaShape());
    NPU_CHECK(losses && alphas, "[ctc_loss] expected losses and log_alpha to be asked for together");
    DispatchTypes("ctc_loss", p.log_probs.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using R = ComputeType<T>;
      ctx.Launch("ctc_loss", [p, alpha = alphas.as<R>(), to = losses.as<T>()] {
        ParallelFor(p.batch, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const ctc::Sequence<T> sequence(p, b);
            R* forward = alpha + b * p.times * p.states;
            Forward(sequence, forward, p.times, p.states);
            to[b] = Rounded<T>(sequence.Loss(forward, p.states));
          }
        });
      });
    });
  }

 private:
  int64_t blank_;
};

NPU_ONNX_KERNEL(ctc::Def("CtcLoss",
                         {Input("log_probs", kAllFloats), Input("targets", kInt64), HostInput("input_lengths", kInt64),
                          HostInput("target_lengths", kInt64)},
                         {Output("losses", kAllFloats), Output("log_alpha", {DType::kFloat32, DType::kFloat64})},
                         MakeKernel<CtcLossKernel>));

}  // namespace
}  // namespace npu
