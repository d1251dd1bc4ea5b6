// The elementwise part of LSTM and GRU cells after their matmuls, which torch calls as one operator.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor Plus(const at::Tensor& gates, const MaybeTensor& bias) { return Has(bias) ? gates + *bias : gates; }

std::vector<at::Tensor> Parts(const at::Tensor& gates, int64_t n) { return gates.chunk(n, 1); }

// The derivative of a sigmoid, and of a tanh, in terms of its value y.
at::Tensor SigmoidSlope(const at::Tensor& y) { return y * (1 - y); }
at::Tensor TanhSlope(const at::Tensor& y) { return 1 - y * y; }

// Gates: input, forget, cell, output. The workspace keeps their activations for the backward pass.
std::tuple<at::Tensor, at::Tensor, at::Tensor> LstmCell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                        const at::Tensor& cell, const MaybeTensor& input_bias,
                                                        const MaybeTensor& hidden_bias) {
  const std::vector<at::Tensor> gates = Parts(Plus(input_gates, input_bias) + Plus(hidden_gates, hidden_bias), 4);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), news = gates[2].tanh(),
                   out = gates[3].sigmoid();
  const at::Tensor next = forget * cell + in * news;
  return {out * next.tanh(), next, at::cat({in, forget, news, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> LstmCellBackward(const MaybeTensor& grad_hidden,
                                                                const MaybeTensor& grad_cell, const at::Tensor& cell,
                                                                const at::Tensor& next, const at::Tensor& workspace,
                                                                bool has_bias) {
  const std::vector<at::Tensor> gates = Parts(workspace, 4);
  const at::Tensor &in = gates[0], &forget = gates[1], &news = gates[2], &out = gates[3];
  const at::Tensor squashed = next.tanh();
  const at::Tensor hidden = Has(grad_hidden) ? *grad_hidden : squashed * 0;
  at::Tensor carried = hidden * out * TanhSlope(squashed);
  if (Has(grad_cell)) carried = carried + *grad_cell;
  const at::Tensor grads = at::cat({carried * news * SigmoidSlope(in), carried * cell * SigmoidSlope(forget),
                                    carried * in * TanhSlope(news), hidden * squashed * SigmoidSlope(out)},
                                   1);
  return {grads, carried * forget, has_bias ? grads.sum(0) : at::Tensor()};
}

// Gates: reset, update, new. The workspace keeps their activations, the hidden state and the new gate's hidden part.
std::tuple<at::Tensor, at::Tensor> GruCell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                           const at::Tensor& hidden, const MaybeTensor& input_bias,
                                           const MaybeTensor& hidden_bias) {
  const std::vector<at::Tensor> from_input = Parts(Plus(input_gates, input_bias), 3);
  const std::vector<at::Tensor> from_hidden = Parts(Plus(hidden_gates, hidden_bias), 3);
  const at::Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const at::Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const at::Tensor news = (from_input[2] + reset * from_hidden[2]).tanh();
  return {news + update * (hidden - news), at::cat({reset, update, news, hidden, from_hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> GruCellBackward(const at::Tensor& grad,
                                                                                       const at::Tensor& workspace,
                                                                                       bool has_bias) {
  const std::vector<at::Tensor> kept = Parts(workspace, 5);
  const at::Tensor &reset = kept[0], &update = kept[1], &news = kept[2], &hidden = kept[3], &new_hidden = kept[4];
  const at::Tensor grad_new = grad * (1 - update) * TanhSlope(news);
  const at::Tensor grad_update = grad * (hidden - news) * SigmoidSlope(update);
  const at::Tensor grad_reset = grad_new * new_hidden * SigmoidSlope(reset);
  const at::Tensor grad_input = at::cat({grad_reset, grad_update, grad_new}, 1);
  const at::Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
  return {grad_input, grad_hidden, grad * update, has_bias ? grad_input.sum(0) : at::Tensor(),
          has_bias ? grad_hidden.sum(0) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_thnn_fused_lstm_cell", &LstmCell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &LstmCellBackward);
  m.impl("_thnn_fused_gru_cell", &GruCell);
  m.impl("_thnn_fused_gru_cell_backward", &GruCellBackward);
}

}  // namespace
}  // namespace npu::aten
