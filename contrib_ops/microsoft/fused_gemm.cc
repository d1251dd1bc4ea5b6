// FusedGemm: ONNX's Gemm followed by an activation, which is an operator of ONNX by its name.
#include <array>
#include <memory>
#include <string>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_step.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "FusedGemm";
constexpr DTypeSet kTypes{DType::kFloat32, DType::kFloat16, DType::kFloat64};

struct Activation {
  const char* name;
  int version;
};
constexpr std::array<Activation, 11> kActivations{{
    {"Relu", 14},
    {"Sigmoid", 13},
    {"Tanh", 13},
    {"Softplus", 1},
    {"Softsign", 1},
    {"HardSwish", 14},
    {"LeakyRelu", 16},
    {"Elu", 6},
    {"ThresholdedRelu", 10},
    {"HardSigmoid", 6},
    {"Selu", 6},
}};

// Null for none and for an unknown one.
const Activation* Find(const std::string& name) {
  for (const Activation& activation : kActivations)
    if (name == activation.name) return &activation;
  return nullptr;
}

class FusedGemmKernel final : public Kernel {
 public:
  explicit FusedGemmKernel(const KernelInfo& info) : gemm_(MakeStep("Gemm", 13, info, info.attributes)) {
    const std::string name = info.attributes.String("activation", "");
    const Activation* activation = Find(name);
    NPU_OP_CHECK(kOp, activation != nullptr || name.empty(), "expected a known activation, got '", name, "'");
    Attributes numbers;
    for (const char* number : {"alpha", "beta", "gamma"}) {
      const std::string given = std::string("activation_") + number;
      if (info.attributes.Has(given)) numbers.Set(number, info.attributes.Float(given));
    }
    if (activation != nullptr) activation_ = MakeStep(activation->name, activation->version, info, numbers);
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return gemm_->PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    StepContext gemm(ctx, {ctx.Input(0), ctx.Input(1), ctx.Input(2)}, StepContext::Result(ctx));
    gemm_->Compute(gemm);
    if (activation_ == nullptr) return;
    StepContext activate(ctx, {gemm.result()}, StepContext::Over(gemm.result()));
    activation_->Compute(activate);
  }

 private:
  std::unique_ptr<Kernel> gemm_, activation_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("A", kTypes), Input("B", kTypes), OptionalInput("C", kTypes)},
    .outputs = {Output("Y", kTypes)},
    .attributes = {FloatAttribute("alpha", 1.0), FloatAttribute("beta", 1.0), IntAttribute("transA", 0),
                   IntAttribute("transB", 0), StringAttribute("activation", ""), FloatAttribute("activation_alpha"),
                   FloatAttribute("activation_beta"), FloatAttribute("activation_gamma")},
    .make = MakeKernel<FusedGemmKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      const std::string name = node.attributes.String("activation", "");
      if (name.empty() || Find(name) != nullptr) return "";
      return "FusedGemm with activation '" + name + "' is not implemented";
    },
}));

}  // namespace
}  // namespace npu
