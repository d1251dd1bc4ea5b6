// FusedGemm and FusedConv: ONNX's Gemm, and its Conv plus a tensor Z, followed by an activation, which is an operator
// of ONNX by its name.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "contrib_ops/microsoft/onnx_step.h"
#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/elementwise/types.h"

namespace npu {
namespace {

constexpr DTypeSet kTypes{DType::kFloat32, DType::kFloat16, DType::kFloat64};

// An activation: the newest version of ONNX's operator that takes its numbers as attributes.
struct Activation {
  const char* name;
  int version;
  std::vector<const char*> numbers;
};

const std::array<Activation, 12>& Activations() {
  static const std::array<Activation, 12> all{{
      {"Relu", 14, {}},
      {"Sigmoid", 13, {}},
      {"Tanh", 13, {}},
      {"Softplus", 1, {}},
      {"Softsign", 1, {}},
      {"HardSwish", 14, {}},
      {"LeakyRelu", 16, {"alpha"}},
      {"Elu", 6, {"alpha"}},
      {"ThresholdedRelu", 10, {"alpha"}},
      {"HardSigmoid", 6, {"alpha", "beta"}},
      {"Clip", 6, {"min", "max"}},
      {"Selu", 6, {"alpha", "gamma"}},
  }};
  return all;
}

// Null for none and for an unknown one.
const Activation* Find(const Attributes& node) {
  const std::string name = node.String("activation", "");
  for (const Activation& activation : Activations())
    if (name == activation.name) return &activation;
  return nullptr;
}

class ActivatedKernel final : public Kernel {
 public:
  // `product`: Gemm or Conv. `numbers`: those of the activation that the node gives, by the names of ONNX's attributes.
  ActivatedKernel(const KernelInfo& info, const char* product, int version, const Attributes& numbers)
      : op_(info.op_type), product_(MakeStep(product, version, info, info.attributes)) {
    const Activation* activation = Find(info.attributes);
    NPU_CHECK(activation != nullptr || info.attributes.String("activation", "").empty(), "[", op_,
              "] expected a known activation, got '", info.attributes.String("activation", ""), "'");
    if (activation != nullptr) activation_ = MakeStep(activation->name, activation->version, info, numbers);
    add_ = MakeStep("Add", 14, info, {});
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input < kAddend && product_->PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    StepContext product(ctx, {ctx.Input(0), ctx.Input(1), ctx.Input(2)}, StepContext::Result(ctx));
    product_->Compute(product);
    const TensorView y = product.result(), addend = ctx.Input(kAddend);
    if (addend) {
      NPU_CHECK(addend.dtype == y.dtype && addend.shape == y.shape, "[", op_, "] expected Z of the result's type and ",
                "shape ", y.shape, ", got ", NameOf(addend.dtype), " ", addend.shape);
      StepContext add(ctx, {y, addend}, StepContext::Over(y));
      add_->Compute(add);
    }
    if (activation_ == nullptr) return;
    StepContext activate(ctx, {y}, StepContext::Over(y));
    activation_->Compute(activate);
  }

 private:
  static constexpr size_t kAddend = 3;

  std::string op_;
  std::unique_ptr<Kernel> product_, add_, activation_;
};

// FusedGemm gives the numbers as attributes of their own.
std::unique_ptr<Kernel> MakeFusedGemm(const KernelInfo& info) {
  Attributes numbers;
  for (const char* name : {"alpha", "beta", "gamma"}) {
    const std::string given = std::string("activation_") + name;
    if (info.attributes.Has(given)) numbers.Set(name, info.attributes.Float(given));
  }
  return std::make_unique<ActivatedKernel>(info, "Gemm", 13, numbers);
}

// FusedConv gives them as a list, in the order of the table.
std::unique_ptr<Kernel> MakeFusedConv(const KernelInfo& info) {
  Attributes numbers;
  const std::vector<double> given = info.attributes.Floats("activation_params");
  if (const Activation* activation = Find(info.attributes)) {
    NPU_CHECK(given.size() == activation->numbers.size(), "[FusedConv] expected ", activation->numbers.size(),
              " activation_params of ", activation->name, ", got ", given.size());
    for (size_t i = 0; i < given.size(); ++i) numbers.Set(activation->numbers[i], given[i]);
  }
  return std::make_unique<ActivatedKernel>(info, "Conv", 11, numbers);
}

std::string WhyNot(const NodeView& node) {
  const std::string name = node.attributes.String("activation", "");
  if (name.empty() || Find(node.attributes) != nullptr) return "";
  return node.op_type + " with activation '" + name + "' is not implemented";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = "FusedGemm",
    .inputs = {Input("A", kTypes), Input("B", kTypes), OptionalInput("C", kTypes)},
    .outputs = {Output("Y", kTypes)},
    .attributes = {FloatAttribute("alpha", 1.0), FloatAttribute("beta", 1.0), IntAttribute("transA", 0),
                   IntAttribute("transB", 0), StringAttribute("activation", ""), FloatAttribute("activation_alpha"),
                   FloatAttribute("activation_beta"), FloatAttribute("activation_gamma")},
    .make = MakeFusedGemm,
    .unsupported = WhyNot,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = "FusedConv",
    .inputs = {Input("X", kTypes), Input("W", kTypes), OptionalInput("B", kTypes), OptionalInput("Z", kTypes)},
    .outputs = {Output("Y", kTypes)},
    .attributes = convolution::ConvolutionAttributes({StringAttribute("activation", ""),
                                                      FloatsAttribute("activation_params")}),
    .make = MakeFusedConv,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
