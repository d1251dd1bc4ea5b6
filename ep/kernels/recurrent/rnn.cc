// RNN (ai.onnx 7 to 22): hidden = activation(W x + R hidden + bias).
#include "ep/kernels/recurrent/kernel.h"

namespace npu::recurrent {

template <class T>
class RnnCell {
 public:
  using C = ComputeType<T>;
  static constexpr Kind kKind{"RNN", 1, false, false};
  static std::vector<int64_t> Parts(const Attributes&) { return {1}; }
  static std::vector<std::string> Activations() { return {"Tanh"}; }

  RnnCell(const CellParts<T>& parts, const Attributes&)
      : from_input(parts.from_input),
        bias(parts.SumOfBiases()),
        from_hidden_(parts.from_hidden[0]),
        activation_(parts.ClippedActivation(0)) {}

  void Step(const C* inputs, Sequences<T>& rows) const {
    const int64_t n = rows.width;
    from_hidden_(rows.Rounded(rows.hidden), rows.count, rows.gates.data(), rows.step);
    rows.ForEachActive([&](int64_t row) {
      C* hidden = rows.hidden.data() + row * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) hidden[i] = inputs[row * n + i] + rows.gates[static_cast<size_t>(row * n + i)];
      activation_(hidden, n);
    });
  }

  Product<T> from_input;
  std::vector<C> bias;

 private:
  Product<T> from_hidden_;
  Activation<C> activation_;
};

NPU_ONNX_KERNEL(RecurrentDef<RnnCell>({}, {}));

}  // namespace npu::recurrent
