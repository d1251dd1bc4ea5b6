// MoE: experts with weights of floats, [experts, columns, depth], kept in panel order if they are constants.
#include <string>

#include "contrib_ops/microsoft/experts.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "MoE";

enum In { kInput, kLogits, kFirst, kFirstBias, kSecond, kSecondBias, kThird, kThirdBias };

class MoEKernel final : public Kernel {
 public:
  explicit MoEKernel(const KernelInfo& info)
      : k_(info.attributes.Int("k")),
        normalized_(info.attributes.Bool("normalize_routing_weights")),
        activation_(kOp, info.attributes,
                    info.input_dtypes.size() > kThird && info.input_dtypes[kThird] != DType::kUndefined),
        float32_products_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if ((input != kFirst && input != kSecond && input != kThird) || constant.shape.rank() != 3 ||
        constant.elements() == 0)
      return false;
    Weight& weight = weights_[input];
    weight.view = constant;
    weight.view.data = nullptr;
    for (int64_t expert = 0; expert < constant.shape[0]; ++expert)
      weight.packed.emplace_back(float32_products_).Pack(kOp, constant.dtype, Of(constant, expert), stream);
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(kInput), logits = ctx.Input(kLogits);
    const TensorView first = WeightOf(ctx, kFirst), second = WeightOf(ctx, kSecond);
    NPU_OP_CHECK(kOp,
                 first.shape.rank() == 3 && second.shape.rank() == 3 && first.elements() > 0 && second.elements() > 0,
                 "expected weights [experts, columns, depth], got ", first.shape, " and ", second.shape);
    const int64_t experts = first.shape[0], hidden = first.shape[2], inner = second.shape[2];
    CheckExpertInputs(kOp, x, logits, experts, hidden, k_);
    const int64_t columns = activation_.columns_of(inner);
    ExpertLayers layers{kOp, x, logits, {}, k_, normalized_, activation_, {}, {}, {}, inner};
    layers.first = Layer(ctx, kFirst, x, {experts, columns, hidden});
    layers.second = Layer(ctx, kSecond, x, {experts, hidden, inner});
    if (ctx.Input(kThird) || !weights_[kThird].packed.empty())
      layers.third = Layer(ctx, kThird, x, {experts, inner, hidden});
    layers.Launch(ctx);
  }

 private:
  struct Weight {
    std::deque<gemm::PackedWeight> packed;  // of each expert
    TensorView view;                        // type and shape
  };

  // [depth, columns] of an expert.
  static gemm::Matrix Of(const TensorView& weight, int64_t expert) {
    const int64_t columns = weight.shape[1], depth = weight.shape[2];
    const void* data =
        weight.data == nullptr ? nullptr : weight.as<const char>() + BytesFor(weight.dtype, expert * columns * depth);
    return gemm::Matrix::RowMajor(data, columns, depth).Transposed();
  }

  TensorView WeightOf(OpContext& ctx, size_t input) const {
    return weights_[input].packed.empty() ? ctx.Input(input) : weights_[input].view;
  }

  ExpertLayer Layer(OpContext& ctx, size_t input, const TensorView& x, const Shape& shape) const {
    static constexpr const char* kNames[] = {"", "", "fc1", "", "fc2", "", "fc3"};
    const TensorView weight = WeightOf(ctx, input), bias = ctx.Input(input + 1);
    NPU_OP_CHECK(kOp, weight.dtype == x.dtype && weight.shape == shape, "expected ", kNames[input],
                 "_experts_weights of ", NameOf(x.dtype), " ", shape, ", got ", NameOf(weight.dtype), " ",
                 weight.shape);
    CheckExpertBias(kOp, "bias", bias, x, shape[0], shape[1]);
    const Weight& kept = weights_[input];
    return {[weight, bias, &kept](int64_t expert, const gemm::Matrix& rows, const gemm::Result& y) {
              const gemm::Matrix right = Of(weight, expert);
              const gemm::Epilogue epilogue = ExpertEpilogue(bias, expert, right.columns);
              if (kept.packed.empty()) return gemm::Multiply(weight.dtype, rows, right, y, epilogue);
              gemm::Multiply(rows, kept.packed[static_cast<size_t>(expert)].matrix(right), y, epilogue);
            },
            shape[1]};
  }

  int64_t k_;
  bool normalized_;
  ExpertActivation activation_;
  DType float32_products_;
  Weight weights_[kThird + 1];
};

std::string WhyNot(const NodeView& node) {
  if (const std::string why = WhyExpertsUnsupported(node); !why.empty()) return why;
  const bool known = node.rank_known[kFirst] && node.rank_known[kSecond] && node.shapes[kFirst].size() == 3 &&
                     node.shapes[kSecond].size() == 3;
  if (known && node.shapes[kFirst][2] != node.shapes[kSecond][1])
    return "MoE with weights [experts, depth, columns] is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("input", kFloats), Input("router_probs", kFloats), Input("fc1_experts_weights", kFloats),
               OptionalInput("fc1_experts_bias", kFloats), Input("fc2_experts_weights", kFloats),
               OptionalInput("fc2_experts_bias", kFloats), OptionalInput("fc3_experts_weights", kFloats),
               OptionalInput("fc3_experts_bias", kFloats)},
    .outputs = {Output("output", kFloats)},
    .attributes = ExpertAttributes({}),
    .make = MakeKernel<MoEKernel>,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
