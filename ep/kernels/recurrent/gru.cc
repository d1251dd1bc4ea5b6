// GRU (ai.onnx 7 to 22).
#include "ep/kernels/recurrent/kernel.h"

namespace npu::recurrent {

// Gates: update, reset, hidden.
template <class T>
class GruCell {
 public:
  using C = ComputeType<T>;
  static constexpr Kind kKind{"GRU", 3, false, false};
  // The reset gate is applied to the hidden state before its product with the third gate's weight, or after.
  static std::vector<int64_t> Parts(const Attributes& attributes) {
    if (attributes.Bool("linear_before_reset")) return {3};
    return {2, 1};
  }
  static std::vector<std::string> Activations() { return {"Sigmoid", "Tanh"}; }

  GruCell(const CellParts<T>& parts, const Attributes& attributes)
      : from_input(parts.from_input),
        from_hidden_(parts.from_hidden),
        gate_(parts.ClippedActivation(0)),
        news_(parts.ClippedActivation(1)),
        reset_after_(attributes.Bool("linear_before_reset")) {
    auto [input, hidden] = parts.Biases();
    const auto third = static_cast<size_t>(2 * parts.layer.hidden);
    if (reset_after_) hidden_bias_.assign(hidden.begin() + static_cast<int64_t>(third), hidden.end());
    for (size_t i = 0; i < input.size(); ++i)
      bias.push_back(reset_after_ && i >= third ? input[i] : input[i] + hidden[i]);
  }

  void Step(const C* inputs, Sequences<T>& rows) const {
    reset_after_ ? StepAfter(inputs, rows) : StepBefore(inputs, rows);
  }

  Product<T> from_input;
  std::vector<C> bias;

 private:
  void StepAfter(const C* inputs, Sequences<T>& rows) const {
    const int64_t n = rows.width;
    from_hidden_[0](rows.Rounded(rows.hidden), rows.count, rows.gates.data(), rows.step);
    rows.ForEachActive([&](int64_t row) {
      const C* x = inputs + row * 3 * n;
      C *gates = rows.gates.data() + row * 3 * n, *reset = gates + n, *news = gates + 2 * n;
      AddGates(x, gates, 2 * n);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        news[i] = x[2 * n + i] + reset[i] * (news[i] + hidden_bias_[static_cast<size_t>(i)]);
      Update(gates, news, rows.hidden.data() + row * n, n);
    });
  }
  // Scratch: [count, 2, n] of the gates, then [count, n] of the new state.
  void StepBefore(const C* inputs, Sequences<T>& rows) const {
    const int64_t n = rows.width;
    C* all_gates = rows.gates.data();
    C* all_news = all_gates + rows.count * 2 * n;
    from_hidden_[0](rows.Rounded(rows.hidden), rows.count, all_gates, rows.step);
    std::vector<C> kept(rows.hidden.size());
    rows.ForEachActive([&](int64_t row) {
      C* gates = all_gates + row * 2 * n;
      AddGates(inputs + row * 3 * n, gates, 2 * n);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        kept[static_cast<size_t>(row * n + i)] = gates[n + i] * rows.hidden[static_cast<size_t>(row * n + i)];
    });
    from_hidden_[1](rows.Rounded(kept), rows.count, all_news, rows.step);
    rows.ForEachActive([&](int64_t row) {
      C* news = all_news + row * n;
      const C* x = inputs + (row * 3 + 2) * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) news[i] += x[i];
      Update(all_gates + row * 2 * n, news, rows.hidden.data() + row * n, n);
    });
  }

  void AddGates(const C* inputs, C* gates, int64_t n) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gates[i] += inputs[i];
    gate_(gates, n);
  }
  void Update(const C* update, C* news, C* hidden, int64_t n) const {
    news_(news, n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) hidden[i] = (1 - update[i]) * news[i] + update[i] * hidden[i];
  }

  std::vector<Product<T>> from_hidden_;
  Activation<C> gate_, news_;
  std::vector<C> hidden_bias_;  // of the third gate, where the reset gate is applied after it was added
  bool reset_after_;
};

NPU_ONNX_KERNEL(RecurrentDef<GruCell>({}, {IntAttribute("linear_before_reset", 0)}));

}  // namespace npu::recurrent
