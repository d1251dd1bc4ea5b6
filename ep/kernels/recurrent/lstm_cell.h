// The cell of LSTM, for every kind of weights.
#pragma once

#include <string>
#include <vector>

#include "ep/kernels/recurrent/kernel.h"

namespace npu::recurrent {

// Gates: input, output, forget, cell.
template <class T, class Product = recurrent::Product<T>>
class LstmCell {
 public:
  using C = ComputeType<T>;
  static constexpr Kind kKind{"LSTM", 4, true, true};
  static std::vector<int64_t> Parts(const Attributes&) { return {4}; }
  static std::vector<std::string> Activations() { return {"Sigmoid", "Tanh", "Tanh"}; }

  LstmCell(const CellParts<T, Product>& parts, const Attributes& attributes)
      : from_input(parts.from_input),
        bias(parts.SumOfBiases()),
        from_hidden_(parts.from_hidden[0]),
        gate_(parts.ClippedActivation(0)),
        news_(parts.ClippedActivation(1)),
        out_(parts.activations.template Get<C>(parts.direction, 2)),
        peepholes_(parts.RowOf(parts.layer.peepholes)),
        coupled_(attributes.Bool("input_forget")) {}

  void Step(const C* inputs, Sequences<T>& rows) const {
    const int64_t n = rows.width;
    from_hidden_(rows.Rounded(rows.hidden), rows.count, rows.gates.data(), rows.step);
    rows.ForEachActive([&](int64_t row) {
      Row(inputs + row * 4 * n, rows.gates.data() + row * 4 * n, rows.hidden.data() + row * n,
          rows.memory.data() + row * n, n);
    });
  }

  Product from_input;
  std::vector<C> bias;

 private:
  // Leaves in `gates`, [4, n], what it computes of them.
  void Row(const C* inputs, C* gates, C* hidden, C* memory, int64_t n) const {
    C *in = gates, *out = gates + n, *forget = gates + 2 * n, *news = gates + 3 * n;
#pragma omp simd
    for (int64_t i = 0; i < 4 * n; ++i) gates[i] += inputs[i];
    AddPeephole(0, memory, in, n);
    AddPeephole(2, memory, forget, n);
    gate_(in, n);
    news_(news, n);
    if (coupled_) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) forget[i] = 1 - in[i];
    } else {
      gate_(forget, n);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) memory[i] = forget[i] * memory[i] + in[i] * news[i];
    AddPeephole(1, memory, out, n);
    gate_(out, n);
    std::copy_n(memory, n, news);
    out_(news, n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) hidden[i] = out[i] * news[i];
  }
  // P has the weights of the input, output and forget gates.
  void AddPeephole(int64_t part, const C* memory, C* gate, int64_t n) const {
    if (peepholes_.empty()) return;
    const C* weights = peepholes_.data() + part * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gate[i] += weights[i] * memory[i];
  }

  Product from_hidden_;
  Activation<C> gate_, news_, out_;
  std::vector<C> peepholes_;  // empty: none
  bool coupled_;              // the forget gate is 1 - the input gate
};

}  // namespace npu::recurrent
