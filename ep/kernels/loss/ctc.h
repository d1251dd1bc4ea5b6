// Connectionist temporal classification: the probability of a label sequence, summed over all alignments that stretch
// it to the input's length with repetitions and blanks, by the forward-backward recursion in the log domain.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/vector_math.h"

namespace npu::ctc {

template <class R>
constexpr R kImpossible = -std::numeric_limits<R>::infinity();

// Inlined and, for float, vectorised in loops.
template <class R>
R ExpOf(R x) {
  if constexpr (std::is_same_v<R, float>) {
    return math::Exp(x);
  } else {
    return std::exp(x);
  }
}

template <class R>
R LogSum(R a, R b) {
  const R greatest = std::max(a, b);
  if (greatest == kImpossible<R>) return greatest;
  const R below = std::min(a, b) - greatest;
  if constexpr (std::is_same_v<R, float>) {
    return greatest + math::Log1pSmall(math::Exp(below));
  } else {
    return greatest + std::log1p(std::exp(below));
  }
}

// The arguments as both passes read them: log_probs [times, batch, labels], and a target per batch entry, which becomes
// a sequence of 2 * length + 1 states with blanks around each label. Targets are [batch, longest], or concatenated.
struct Problem {
  const char* op;
  int64_t blank, times, batch, labels;
  int64_t states = 1;  // of the longest target
  std::vector<int64_t> input_lengths, target_lengths, offsets;
  TensorView log_probs, targets;

  Problem(const char* op_name, int64_t blank_label, const TensorView& probs, const TensorView& labels_of_all,
          const TensorView& inputs, const TensorView& lengths);
  Shape AlphaShape() const { return {batch, times, states}; }
};

inline Problem::Problem(const char* op_name, int64_t blank_label, const TensorView& probs,
                        const TensorView& labels_of_all, const TensorView& inputs, const TensorView& lengths)
    : op(op_name),
      blank(blank_label),
      input_lengths(ReadHostInts(op, "input_lengths", inputs)),
      target_lengths(ReadHostInts(op, "target_lengths", lengths)),
      log_probs(probs),
      targets(labels_of_all) {
  NPU_OP_CHECK(op, log_probs && log_probs.shape.rank() == 3, "expected log_probs of shape [T, N, C], got ",
               log_probs.shape);
  times = log_probs.shape[0], batch = log_probs.shape[1], labels = log_probs.shape[2];
  const Shape& shape = targets.shape;
  const bool padded = shape.rank() == 2;
  NPU_OP_CHECK(op, targets && targets.dtype == DType::kInt64 && (shape.rank() == 1 || (padded && shape[0] == batch)),
               "expected targets of int64 and of shape [N, S] or one behind the other, got ", NameOf(targets.dtype),
               " of ", shape);
  NPU_OP_CHECK(op, blank >= 0 && blank < labels, "expected a blank in [0, ", labels, "), got ", blank);
  for (const std::vector<int64_t>* list : {&input_lengths, &target_lengths})
    NPU_OP_CHECK(op, static_cast<int64_t>(list->size()) == batch, "expected ", batch, " lengths, got ", list->size());
  int64_t end = 0;
  for (size_t b = 0; b < input_lengths.size(); ++b) {
    const int64_t length = target_lengths[b], room = padded ? shape[1] : shape[0] - end;
    NPU_OP_CHECK(op, input_lengths[b] >= 0 && input_lengths[b] <= times, "expected input_lengths in [0, ", times,
                 "], got ", input_lengths[b]);
    NPU_OP_CHECK(op, length >= 0 && length <= room, "expected target_lengths in [0, ", room, "], got ", length);
    offsets.push_back(padded ? static_cast<int64_t>(b) * shape[1] : end);
    end += length;
    states = std::max(states, 2 * length + 1);
  }
}

// One batch entry, computed in R.
template <class T>
struct Sequence {
  using R = ComputeType<T>;
  const T* log_probs;  // of the first time step; the next is `stride` further
  std::vector<int64_t> target;
  int64_t stride, labels, blank, times, states;

  Sequence(const Problem& p, int64_t b)
      : log_probs(p.log_probs.as<const T>() + b * p.labels),
        stride(p.batch * p.labels),
        labels(p.labels),
        blank(p.blank),
        times(p.input_lengths[static_cast<size_t>(b)]),
        states(2 * p.target_lengths[static_cast<size_t>(b)] + 1) {
    const CheckedNumbers label("ctc_loss", "targets", p.targets.as<const int64_t>(), 0, labels);
    const int64_t first = p.offsets[static_cast<size_t>(b)];
    for (int64_t s = 1; s < states; s += 2) target.push_back(label[first + s / 2]);
  }
  int64_t Label(int64_t state) const { return state % 2 == 0 ? blank : target[static_cast<size_t>(state / 2)]; }
  R LogProb(int64_t t, int64_t state) const { return Upcast(log_probs[t * stride + Label(state)]); }
  // Whether a path may skip the blank between the state before last and this one.
  bool Skips(int64_t state) const { return state >= 2 && state < states && Label(state) != Label(state - 2); }

  // The negative log-likelihood of the target, from alpha [times, width], the log-probability of reaching each state.
  R Loss(const R* alpha, int64_t width) const {
    if (times == 0) return states == 1 ? R{0} : -kImpossible<R>;
    const R* last = alpha + (times - 1) * width;
    return -(states == 1 ? last[0] : LogSum(last[states - 1], last[states - 2]));
  }
};

inline OpDef Def(const char* type, std::vector<ArgDef> inputs, std::vector<ArgDef> outputs, KernelFactory make) {
  return {.domain = "npu.aten",
          .type = type,
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .attributes = {IntAttribute("blank", 0)},
          .make = std::move(make)};
}

}  // namespace npu::ctc
