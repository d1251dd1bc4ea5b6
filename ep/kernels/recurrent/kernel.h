// The kernel and the definition that LSTM, GRU and RNN share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/recurrent/activation.h"
#include "ep/kernels/recurrent/shares.h"
#include "ep/kernels/recurrent/steps.h"

namespace npu::recurrent {

// What a cell is made of, for one direction. In a launch.
template <class T, class Product = recurrent::Product<T>>
struct CellParts {
  using C = ComputeType<T>;
  const Layer& layer;
  const Settings& settings;
  const ActivationList& activations;
  int64_t direction;
  Product from_input;
  std::vector<Product> from_hidden;  // one for each of the parts of R

  // Row `direction` of an optional tensor [directions, n] as floats or doubles; empty if it is absent.
  std::vector<C> RowOf(const TensorView& view) const {
    if (!view) return {};
    const int64_t n = view.shape[1];
    std::vector<C> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = Upcast(view.as<const T>()[direction * n + i]);
    return values;
  }
  // The two halves of B: of the inputs and of the hidden state, zeros if it is absent.
  std::pair<std::vector<C>, std::vector<C>> Biases() const {
    std::vector<C> first = RowOf(layer.bias), second;
    if (first.empty()) first.assign(static_cast<size_t>(2 * from_input.columns()), 0);
    second.assign(first.begin() + from_input.columns(), first.end());
    first.resize(second.size());
    return {std::move(first), std::move(second)};
  }
  std::vector<C> SumOfBiases() const {
    auto [sum, hidden] = Biases();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += hidden[i];
    return sum;
  }
  // Activation `i`, with the node's clip.
  Activation<C> ClippedActivation(size_t i) const {
    Activation<C> activation = activations.Get<C>(direction, i);
    activation.clip = static_cast<C>(settings.clip);
    return activation;
  }
};

// Cell<T> is made from CellParts<T>. It has, beside what Steps needs,
//   static std::vector<int64_t> Parts(const Attributes&)       of R, in gates
//   static std::vector<std::string> Activations()              the default ones, of a direction
template <template <class> class Cell>
class RecurrentKernel final : public Kernel {
 public:
  static constexpr Kind kKind = Cell<float>::kKind;

  explicit RecurrentKernel(const KernelInfo& info)
      : attributes_(info.attributes),
        settings_(kKind.op, info.attributes),
        activations_(kKind.op, info.attributes, Cell<float>::Activations(), settings_.directions()),
        of_input_({kKind.gates}),
        of_hidden_(Cell<float>::Parts(info.attributes)) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input == 1) return of_input_.Keep(kKind.op, constant, stream);
    return input == 2 && of_hidden_.Keep(kKind.op, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const Layer layer(kKind, settings_, ctx, of_input_.Of(ctx.Input(1)), of_hidden_.Of(ctx.Input(2)));
    const DType dtype = layer.x.dtype;
    const TensorView y = ctx.Output(0, dtype, layer.output), hidden = ctx.Output(1, dtype, layer.state);
    const TensorView memory = kKind.memory ? ctx.Output(2, dtype, layer.state) : TensorView{};
    if (layer.batch == 0) return;
    const size_t w_bytes = of_input_.ScratchBytes(layer.w);
    char* scratch = static_cast<char*>(ctx.Workspace(w_bytes + of_hidden_.ScratchBytes(layer.r)));
    DispatchTypes(kKind.op, dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const Outputs<T> outputs{y.as<T>(), hidden.as<T>(), memory.as<T>()};
      ctx.Launch(kKind.op, [this, layer, outputs, scratch, w_bytes] { Run<T>(layer, outputs, scratch, w_bytes); });
    });
  }

 private:
  template <class T>
  void Run(const Layer& layer, const Outputs<T>& outputs, char* scratch, size_t w_bytes) const {
    CheckLengths(layer);
    const auto from_input = of_input_.Products<T>(layer.w, scratch);
    auto from_hidden = of_hidden_.Products<T>(layer.r, scratch + w_bytes);
    std::vector<Cell<T>> cells;
    for (int64_t d = 0; d < layer.directions; ++d) {
      const auto index = static_cast<size_t>(d);
      cells.emplace_back(CellParts<T>{layer, settings_, activations_, d, from_input[index][0], from_hidden[index]},
                         attributes_);
    }
    ForSequences(
        layer.batch, layer.directions, kKind.gates * layer.hidden, layer.hidden,
        [&](int64_t d, int64_t first, int64_t count) {
          Steps<T, Cell<T>>(layer, cells[static_cast<size_t>(d)], d, settings_.reverse(d), outputs).Run(first, count);
        });
  }

  static void CheckLengths(const Layer& layer) {
    if (layer.lengths) layer.CheckedLengths(kKind.op).CheckFirst(layer.batch);
  }

  Attributes attributes_;
  Settings settings_;
  ActivationList activations_;
  Weights of_input_, of_hidden_;
};

// The attributes that all layers share.
inline std::vector<AttrDef> LayerAttributes() {
  return {{.name = "activations", .kind = AttrDef::Kind::kStrings},
          FloatsAttribute("activation_alpha"),
          FloatsAttribute("activation_beta"),
          FloatAttribute("clip"),
          StringAttribute("direction", "forward"),
          IntAttribute("hidden_size")};
}

// The arguments that the three operators share; `more` attributes and inputs follow.
template <template <class> class Cell>
OpDef RecurrentDef(std::vector<ArgDef> more_inputs, std::vector<AttrDef> more_attributes) {
  OpDef def{
      .type = Cell<float>::kKind.op,
      .since = 7,
      .until = 22,
      .inputs = {Input("X", kAllFloats), Input("W", kAllFloats), Input("R", kAllFloats), OptionalInput("B", kAllFloats),
                 OptionalInput("sequence_lens", {DType::kInt32}), OptionalInput("initial_h", kAllFloats)},
      .outputs = {OptionalOutput("Y", kAllFloats), OptionalOutput("Y_h", kAllFloats)},
      .attributes = LayerAttributes(),
      .make = MakeKernel<RecurrentKernel<Cell>>,
  };
  def.attributes.push_back(IntAttribute("layout", 0));
  for (ArgDef& input : more_inputs) def.inputs.push_back(std::move(input));
  for (AttrDef& attribute : more_attributes) def.attributes.push_back(std::move(attribute));
  return def;
}

}  // namespace npu::recurrent
