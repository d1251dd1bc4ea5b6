// Connectionist temporal classification.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstring>
#include <tuple>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

void CheckLengths(const char* name, at::IntArrayRef lengths, size_t i, int64_t most) {
  TORCH_CHECK(lengths[i] >= 0 && lengths[i] <= most, "Expected ", name, " to have value between 0 and ", most,
              ", but got value ", lengths[i], " (while checking arguments for ctc_loss)");
}

// Uses torch's messages where it has them.
void CheckArguments(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef inputs,
                    at::IntArrayRef lengths, int64_t blank) {
  TORCH_CHECK(log_probs.dim() == 3 && KernelCall("CtcLoss", "npu.aten").Takes(0, log_probs.scalar_type()),
              "ctc_loss expected log_probs of real floats and shape [T, N, C], got ", log_probs.scalar_type(), " of ",
              log_probs.sizes());
  const int64_t batch = log_probs.size(1);
  TORCH_CHECK(targets.scalar_type() == at::kLong || targets.scalar_type() == at::kInt,
              "ctc_loss expected targets of int32 or int64, got ", targets.scalar_type());
  TORCH_CHECK(targets.dim() == 1 || (targets.dim() == 2 && targets.size(0) == batch),
              "ctc_loss expected targets of shape [N, S] or one behind the other, got ", targets.sizes());
  TORCH_CHECK(blank >= 0 && blank < log_probs.size(2), "blank must be in label range");
  TORCH_CHECK(static_cast<int64_t>(inputs.size()) == batch, "input_lengths must be of size batch_size");
  TORCH_CHECK(static_cast<int64_t>(lengths.size()) == batch, "target_lengths must be of size batch_size");
  int64_t room = targets.size(-1);
  for (size_t b = 0; b < inputs.size(); ++b) {
    CheckLengths("input_lengths", inputs, b, log_probs.size(0));
    CheckLengths("target_lengths", lengths, b, room);
    if (targets.dim() == 1) room -= lengths[b];
  }
}

std::tuple<at::Tensor, at::Tensor> CtcLoss(const at::Tensor& log_probs, const at::Tensor& targets,
                                           at::IntArrayRef input_lengths, at::IntArrayRef target_lengths, int64_t blank,
                                           bool) {
  CheckArguments(log_probs, targets, input_lengths, target_lengths, blank);
  KernelCall call("CtcLoss", "npu.aten");
  call.In(Dense(log_probs)).In(Dense(targets, at::kLong)).Host(input_lengths.vec()).Host(target_lengths.vec());
  const std::vector<at::Tensor> results = call.Set("blank", blank).Run(2);
  return {results[0], results[1]};
}

at::Tensor CtcLossBackward(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
                           at::IntArrayRef input_lengths, at::IntArrayRef target_lengths, const at::Tensor&,
                           const at::Tensor& alphas, int64_t blank, bool zero_infinity) {
  CheckArguments(log_probs, targets, input_lengths, target_lengths, blank);
  const at::ScalarType dtype = log_probs.scalar_type();
  KernelCall call("CtcLossGrad", "npu.aten");
  call.In(Dense(grad.expand({log_probs.size(1)}), dtype)).In(Dense(log_probs)).In(Dense(targets, at::kLong));
  call.Host(input_lengths.vec()).Host(target_lengths.vec()).In(Dense(alphas, AccumulateType(dtype)));
  return call.Set("blank", blank).Set("zero_infinity", int64_t{zero_infinity}).One();
}

std::vector<int64_t> Lengths(const at::Tensor& lengths) {
  const at::Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  std::vector<int64_t> values(static_cast<size_t>(host.numel()));
  if (!values.empty()) std::memcpy(values.data(), host.const_data_ptr(), host.nbytes());
  return values;
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
