// Connectionist temporal classification: the probability of a sequence of labels, over all ways to stretch it with
// repetitions and blanks to the length of the input, by the forward-backward recursion in logarithms.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "ep/runtime/error.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

template <class R>
constexpr R kImpossible = -std::numeric_limits<R>::infinity();

template <class R>
R LogSum(R a, R b) {
  const R greatest = std::max(a, b);
  if (greatest == kImpossible<R>) return greatest;
  return greatest + std::log1p(std::exp(std::min(a, b) - greatest));
}

// Both passes' view of one call: log_probs [times, batch, labels], and for each of the batch its target, with blanks
// around each label a sequence of 2 * length + 1 states.
struct Problem {
  int64_t times, batch, labels, blank;
  int64_t states = 1;  // of the longest target
  std::vector<int64_t> input_lengths, target_lengths, offsets;

  Problem(const at::Tensor& log_probs, const at::Tensor& given_targets, at::IntArrayRef inputs, at::IntArrayRef lengths,
          int64_t blank_label)
      : blank(blank_label), input_lengths(inputs.vec()), target_lengths(lengths.vec()) {
    TORCH_CHECK(log_probs.dim() == 3 && IsRealFloat(log_probs.scalar_type()),
                "ctc_loss expected log_probs of real floats and shape [T, N, C], got ", log_probs.scalar_type(), " of ",
                log_probs.sizes());
    times = log_probs.size(0), batch = log_probs.size(1), labels = log_probs.size(2);
    TORCH_CHECK(given_targets.scalar_type() == at::kLong || given_targets.scalar_type() == at::kInt,
                "ctc_loss expected targets of int32 or int64, got ", given_targets.scalar_type());
    TORCH_CHECK(given_targets.dim() == 1 || (given_targets.dim() == 2 && given_targets.size(0) == batch),
                "ctc_loss expected targets of shape [N, S] or one behind the other, got ", given_targets.sizes());
    TORCH_CHECK(blank >= 0 && blank < labels, "blank must be in label range");
    TORCH_CHECK(static_cast<int64_t>(inputs.size()) == batch, "input_lengths must be of size batch_size");
    TORCH_CHECK(static_cast<int64_t>(lengths.size()) == batch, "target_lengths must be of size batch_size");
    int64_t end = 0;
    for (size_t b = 0; b < inputs.size(); ++b) {
      TORCH_CHECK(inputs[b] >= 0 && inputs[b] <= times, "Expected input_lengths to have value between 0 and ", times,
                  ", but got value ", inputs[b], " (while checking arguments for ctc_loss)");
      const int64_t room = given_targets.dim() == 2 ? given_targets.size(1) : given_targets.size(0) - end;
      TORCH_CHECK(lengths[b] >= 0 && lengths[b] <= room, "Expected target_lengths to have value between 0 and ", room,
                  ", but got value ", lengths[b], " (while checking arguments for ctc_loss)");
      offsets.push_back(given_targets.dim() == 2 ? static_cast<int64_t>(b) * given_targets.size(1) : end);
      end += lengths[b];
      states = std::max(states, 2 * lengths[b] + 1);
    }
  }
};

// One of the batch, in the arithmetic of R.
template <class T>
struct Sequence {
  using R = Real<T>;
  const T* log_probs;  // of the first time; the next is `stride` further
  const int64_t* target;
  int64_t stride, labels, blank, times, states;

  Sequence(const Problem& p, const T* probs, const int64_t* all_targets, int64_t b)
      : log_probs(probs + b * p.labels),
        target(all_targets + p.offsets[static_cast<size_t>(b)]),
        stride(p.batch * p.labels),
        labels(p.labels),
        blank(p.blank),
        times(p.input_lengths[static_cast<size_t>(b)]),
        states(2 * p.target_lengths[static_cast<size_t>(b)] + 1) {
    for (int64_t s = 1; s < states; s += 2)
      NPU_CHECK(Label(s) >= 0 && Label(s) < labels, "[ctc_loss] expected targets between 0 and ", labels - 1, ", got ",
                Label(s));
  }
  int64_t Label(int64_t state) const { return state % 2 == 0 ? blank : target[state / 2]; }
  R LogProb(int64_t t, int64_t state) const { return static_cast<R>(log_probs[t * stride + Label(state)]); }
  // Whether a path may go from the state before last to this one, past the blank between them.
  bool Skips(int64_t state) const { return state >= 2 && state < states && Label(state) != Label(state - 2); }

  // alpha [times, width]: what leads to each state.
  void Forward(R* alpha, int64_t width) const {
    for (int64_t t = 0; t < times; ++t) {
      R* now = alpha + t * width;
      const R* before = now - width;
      for (int64_t s = 0; s < states; ++s) {
        R sum = t == 0 ? (s < 2 ? R{0} : kImpossible<R>) : before[s];
        if (t > 0 && s > 0) sum = LogSum(sum, before[s - 1]);
        if (t > 0 && Skips(s)) sum = LogSum(sum, before[s - 2]);
        now[s] = sum + LogProb(t, s);
      }
    }
  }
  // The negative logarithm of the target's likelihood.
  R Loss(const R* alpha, int64_t width) const {
    if (times == 0) return states == 1 ? R{0} : -kImpossible<R>;
    const R* last = alpha + (times - 1) * width;
    return -(states == 1 ? last[0] : LogSum(last[states - 1], last[states - 2]));
  }

  // The gradient by log_probs, from `alpha`; `beta` is what follows each state at the time in hand.
  void Backward(const R* alpha, int64_t width, R scale, T* grad) const {
    const R loss = Loss(alpha, width);
    std::vector<R> beta(static_cast<size_t>(states)), after(beta), paths(static_cast<size_t>(labels));
    const auto at = [](int64_t i) { return static_cast<size_t>(i); };
    for (int64_t t = times - 1; t >= 0; --t) {
      std::swap(beta, after);
      std::fill(paths.begin(), paths.end(), kImpossible<R>);
      for (int64_t s = 0; s < states; ++s) {
        R sum = t == times - 1 ? (s >= states - 2 ? R{0} : kImpossible<R>) : after[at(s)];
        if (t < times - 1 && s + 1 < states) sum = LogSum(sum, after[at(s + 1)]);
        if (t < times - 1 && Skips(s + 2)) sum = LogSum(sum, after[at(s + 2)]);
        beta[at(s)] = sum + LogProb(t, s);
        R& path = paths[at(Label(s))];
        path = LogSum(path, alpha[t * width + s] + beta[at(s)]);
      }
      for (int64_t c = 0; c < labels; ++c) {
        const R log_prob = static_cast<R>(log_probs[t * stride + c]);
        grad[t * stride + c] = static_cast<T>(scale * (std::exp(log_prob) - std::exp(paths[at(c)] + loss - log_prob)));
      }
    }
  }
};

std::tuple<at::Tensor, at::Tensor> CtcLoss(const at::Tensor& log_probs, const at::Tensor& targets,
                                           at::IntArrayRef input_lengths, at::IntArrayRef target_lengths, int64_t blank,
                                           bool) {
  const Problem problem(log_probs, targets, input_lengths, target_lengths, blank);
  const at::ScalarType dtype = log_probs.scalar_type();
  at::Tensor losses = Empty({problem.batch}, dtype, log_probs);
  // Kept for the backward pass: in float, for what it adds up is small beside it.
  const at::Tensor alphas =
      Empty({problem.batch, problem.times, problem.states}, AccumulateType(dtype), log_probs).fill_(kImpossible<float>);
  const at::Tensor probs = Dense(log_probs), sequences = Dense(targets, at::kLong);
  DispatchFloats(dtype, [&]<class T>(T) {
    StreamOf(losses).Launch("ctc_loss", [problem, from = static_cast<const T*>(probs.const_data_ptr()),
                                         labels = static_cast<const int64_t*>(sequences.const_data_ptr()),
                                         alpha = static_cast<Real<T>*>(alphas.mutable_data_ptr()),
                                         to = static_cast<T*>(losses.mutable_data_ptr())] {
      ParallelFor(problem.batch, 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          const Sequence<T> sequence(problem, from, labels, b);
          Real<T>* forward = alpha + b * problem.times * problem.states;
          sequence.Forward(forward, problem.states);
          to[b] = static_cast<T>(sequence.Loss(forward, problem.states));
        }
      });
    });
  });
  return {losses, alphas};
}

at::Tensor CtcLossBackward(const at::Tensor& given_grad, const at::Tensor& log_probs, const at::Tensor& targets,
                           at::IntArrayRef input_lengths, at::IntArrayRef target_lengths, const at::Tensor&,
                           const at::Tensor& given_alphas, int64_t blank, bool zero_infinity) {
  const Problem problem(log_probs, targets, input_lengths, target_lengths, blank);
  const at::ScalarType dtype = log_probs.scalar_type();
  TORCH_CHECK(given_alphas.sizes() == at::IntArrayRef({problem.batch, problem.times, problem.states}),
              "ctc_loss_backward expected log_alpha as ctc_loss gave it for these arguments, got ",
              given_alphas.sizes());
  at::Tensor out = Empty(log_probs.sizes(), dtype, log_probs).zero_();
  const at::Tensor grad = Dense(given_grad.expand({problem.batch}), dtype), probs = Dense(log_probs),
                   sequences = Dense(targets, at::kLong), alphas = Dense(given_alphas, AccumulateType(dtype));
  DispatchFloats(dtype, [&]<class T>(T) {
    using R = Real<T>;
    StreamOf(out).Launch(
        "ctc_loss_backward",
        [problem, zero_infinity, from = static_cast<const T*>(probs.const_data_ptr()),
         labels = static_cast<const int64_t*>(sequences.const_data_ptr()),
         alpha = static_cast<const R*>(alphas.const_data_ptr()), scale = static_cast<const T*>(grad.const_data_ptr()),
         to = static_cast<T*>(out.mutable_data_ptr())] {
          ParallelFor(problem.batch, 1, [&](int64_t begin, int64_t end) {
            for (int64_t b = begin; b < end; ++b) {
              const Sequence<T> sequence(problem, from, labels, b);
              const R* forward = alpha + b * problem.times * problem.states;
              if (zero_infinity && sequence.Loss(forward, problem.states) == -kImpossible<R>) continue;
              sequence.Backward(forward, problem.states, static_cast<R>(scale[b]), to + b * problem.labels);
            }
          });
        });
  });
  return out;
}

std::vector<int64_t> Lengths(const at::Tensor& lengths) {
  const at::Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}
std::tuple<at::Tensor, at::Tensor> CtcLossOfTensors(const at::Tensor& log_probs, const at::Tensor& targets,
                                                    const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                                                    int64_t blank, bool zero_infinity) {
  return CtcLoss(log_probs, targets, Lengths(input_lengths), Lengths(target_lengths), blank, zero_infinity);
}
at::Tensor CtcLossOfTensorsBackward(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
                                    const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                                    const at::Tensor& losses, const at::Tensor& alphas, int64_t blank,
                                    bool zero_infinity) {
  return CtcLossBackward(grad, log_probs, targets, Lengths(input_lengths), Lengths(target_lengths), losses, alphas,
                         blank, zero_infinity);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_ctc_loss", &CtcLoss);
  m.impl("_ctc_loss.Tensor", &CtcLossOfTensors);
  m.impl("_ctc_loss_backward", &CtcLossBackward);
  m.impl("_ctc_loss_backward.Tensor", &CtcLossOfTensorsBackward);
}

}  // namespace
}  // namespace npu::aten
