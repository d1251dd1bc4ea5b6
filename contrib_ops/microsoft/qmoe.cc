// QMoE: experts with weights of 2, 4 or 8 bits, [experts, columns, depth * bits / 8], each with a scale and a zero
// point for every column, or for blocks along its depth.
#include <string>
#include <vector>

#include "contrib_ops/microsoft/experts.h"
#include "contrib_ops/microsoft/integer_bits.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "QMoE";

enum In { kInput, kLogits, kFirst, kSecond = 5, kThird = 8, kFirstPoints = 11, kShares = 14, kGlobalScale = 15 };
// Behind each weight come its scales and its bias; zero points are in the same order of layers.
constexpr size_t kScales = 1, kBias = 2, kLayers = 3;

constexpr size_t WeightInput(size_t layer) { return kFirst + 3 * layer; }

int64_t BitsOfLayer(const Attributes& attributes, size_t layer) {
  static constexpr const char* kNames[] = {"fc1_expert_weight_bits", "fc2_expert_weight_bits",
                                           "fc3_expert_weight_bits"};
  return attributes.Int(kNames[layer], attributes.Int("expert_weight_bits", 4));
}

class QMoEKernel final : public Kernel {
 public:
  explicit QMoEKernel(const KernelInfo& info)
      : k_(info.attributes.Int("k")),
        block_(info.attributes.Int("block_size", 0)),
        // Without weights of their own, shares are the softmax of the best k whatever the attribute says, as in
        // onnxruntime.
        normalized_(info.attributes.Bool("normalize_routing_weights") || !Given(info, kShares)),
        round_a_(info.attributes.Int("accuracy_level") == 4),
        activation_(kOp, info.attributes, Given(info, kThird)) {
    NPU_OP_CHECK(kOp, block_ <= 0 || (block_ >= 16 && (block_ & (block_ - 1)) == 0),
                 "expected a block_size that is a power of 2 from 16 on, got ", block_);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const int64_t bits = BitsOfLayer(info.attributes, layer);
      NPU_OP_CHECK(kOp, bits == 2 || bits == 4 || bits == 8, "expected weights of 2, 4 or 8 bits, got ", bits);
      weights_[layer].bits = bits;
    }
    if (!info.input_dtypes.empty()) dtype_ = info.input_dtypes[0];
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      if (input == WeightInput(layer)) return PackWeight(weights_[layer], constant, stream);
      if (input == kFirstPoints + layer) return KeepPoints(weights_[layer], constant, stream);
    }
    return false;
  }

  void Compute(OpContext& ctx) const override {
    const Weight &first = weights_[0], &second = weights_[1], &third = weights_[2];
    NPU_OP_CHECK(kOp, !first.packed.empty() && !second.packed.empty(), "expected constant weights");
    const TensorView x = ctx.Input(kInput), logits = ctx.Input(kLogits), shares = ctx.Input(kShares);
    const int64_t experts = first.experts, hidden = first.depth, inner = second.depth;
    CheckExpertInputs(kOp, x, logits, experts, hidden, k_);
    NPU_OP_CHECK(kOp, x.dtype == dtype_ && (!shares || (shares.dtype == x.dtype && shares.shape == logits.shape)),
                 "expected router_weights of ", NameOf(dtype_), " ", logits.shape, ", got ", NameOf(shares.dtype), " ",
                 shares.shape);
    ExpertLayers layers{kOp, x, logits, shares, k_, normalized_, activation_, {}, {}, {}, inner};
    layers.first = Layer(ctx, 0, x, experts, activation_.columns_of(inner), hidden);
    layers.second = Layer(ctx, 1, x, experts, hidden, inner);
    if (!third.packed.empty()) layers.third = Layer(ctx, 2, x, experts, inner, hidden);
    layers.Launch(ctx);
  }

 private:
  struct Weight {
    int64_t bits = 4, experts = 0, columns = 0, depth = 0;
    std::deque<gemm::PackedWeight> packed;  // of each expert
    std::vector<uint8_t> points;            // as given
    std::vector<char> offsets;              // the middle of the range less the zero points, of the input's type
  };

  static bool Given(const KernelInfo& info, size_t input) {
    return info.input_dtypes.size() > input && info.input_dtypes[input] != DType::kUndefined;
  }
  int64_t BlocksOf(const Weight& weight) const { return block_ > 0 ? weight.depth / block_ : 1; }
  // Scales of a layer, or its zero points.
  Shape ScalesOf(const Weight& weight) const {
    Shape shape{weight.experts, weight.columns};
    if (block_ > 0) shape.push_back(BlocksOf(weight));
    return shape;
  }

  bool PackWeight(Weight& weight, const TensorView& constant, Stream& stream) {
    const Shape& shape = constant.shape;
    NPU_OP_CHECK(kOp, constant.dtype == DType::kUInt8 && shape.rank() == 3 && shape.Elements() > 0,
                 "expected weights [experts, columns, bytes] of uint8, got ", NameOf(constant.dtype), " ", shape);
    weight.experts = shape[0];
    weight.columns = shape[1];
    weight.depth = shape[2] * 8 / weight.bits;
    NPU_OP_CHECK(kOp, block_ <= 0 || weight.depth % block_ == 0, "expected whole blocks of ", block_,
                 " elements, got weights with a depth of ", weight.depth);
    const int64_t bytes = shape[1] * shape[2];
    std::vector<uint8_t> centred(CentredBytes(weight.bits, bytes));
    for (int64_t expert = 0; expert < shape[0]; ++expert) {
      stream.Launch(
          kOp, [&] { CentreBits(weight.bits, constant.as<const uint8_t>() + expert * bytes, bytes, centred.data()); });
      stream.Synchronize();
      weight.packed.emplace_back().PackQuantized(
          kOp, CentredType(weight.bits), {centred.data(), weight.depth, weight.columns, 1, weight.depth}, stream);
    }
    MakeOffsets(weight);
    return true;
  }

  bool KeepPoints(Weight& weight, const TensorView& constant, Stream& stream) {
    NPU_OP_CHECK(kOp, constant.dtype == DType::kUInt8, "expected zero points of uint8, got ", NameOf(constant.dtype));
    weight.points.resize(constant.bytes());
    stream.Launch(kOp, [&] { std::copy_n(constant.as<const uint8_t>(), weight.points.size(), weight.points.data()); });
    stream.Synchronize();
    MakeOffsets(weight);
    return true;
  }

  // As soon as weight and zero points are both there.
  void MakeOffsets(Weight& weight) const {
    if (weight.packed.empty() || weight.points.empty()) return;
    // Rows of blocks, or one of all columns, are padded to whole bytes.
    const int64_t rows = block_ > 0 ? weight.experts * weight.columns : weight.experts;
    const int64_t each = block_ > 0 ? BlocksOf(weight) : weight.columns, pitch = (each * weight.bits + 7) / 8;
    NPU_OP_CHECK(kOp, static_cast<int64_t>(weight.points.size()) == rows * pitch, "expected ", rows * pitch,
                 " bytes of zero points, got ", weight.points.size());
    weight.offsets.resize(BytesFor(dtype_, rows * each));
    DispatchFloats(kOp, dtype_, [&](auto type) {
      using T = decltype(type);
      const int middle = 1 << (weight.bits - 1);
      for (int64_t i = 0; i < rows * each; ++i) {
        const int point = BitsAt(weight.points.data() + i / each * pitch, weight.bits, i % each);
        reinterpret_cast<T*>(weight.offsets.data())[i] = FromFloat<T>(static_cast<float>(middle - point));
      }
    });
  }

  ExpertLayer Layer(OpContext& ctx, size_t layer, const TensorView& x, int64_t experts, int64_t columns,
                    int64_t depth) const {
    const Weight& weight = weights_[layer];
    const TensorView scales = ctx.Input(WeightInput(layer) + kScales), bias = ctx.Input(WeightInput(layer) + kBias);
    NPU_OP_CHECK(kOp, weight.experts == experts && weight.columns == columns && weight.depth == depth,
                 "expected weights of ", experts, " experts with ", columns, " columns of ", depth, " elements, got ",
                 weight.experts, ", ", weight.columns, " and ", weight.depth);
    const Shape wanted = ScalesOf(weight);
    NPU_OP_CHECK(kOp, scales.dtype == x.dtype && scales.shape == wanted, "expected scales of ", NameOf(x.dtype), " ",
                 wanted, ", got ", NameOf(scales.dtype), " ", scales.shape);
    CheckExpertBias(kOp, "bias", bias, x, experts, columns);
    const int64_t blocks = BlocksOf(weight);
    return {[=, &weight, group = std::max<int64_t>(0, block_), round_a = round_a_](
                int64_t expert, const gemm::Matrix& rows, const gemm::Result& y) {
              const size_t at = BytesFor(scales.dtype, expert * columns * blocks);
              const gemm::Dequantization dequantization{
                  .scale = scales.as<const char>() + at,
                  .offset = weight.offsets.empty() ? nullptr : weight.offsets.data() + at,
                  .dtype = scales.dtype,
                  .group = group,
                  .group_stride = 1,
                  .column_stride = blocks,
                  .round_a = round_a};
              gemm::Multiply(rows,
                             weight.packed[static_cast<size_t>(expert)].quantized({nullptr, depth, columns},
                                                                                  scales.dtype, dequantization),
                             y, ExpertEpilogue(bias, expert, columns));
            },
            columns};
  }

  int64_t k_, block_;
  bool normalized_, round_a_;
  ExpertActivation activation_;
  DType dtype_ = DType::kUndefined;  // of the input, as the model declares it
  Weight weights_[kLayers];
};

bool IsGiven(const NodeView& node, size_t input) {
  return input < node.inputs.size() && node.inputs[input] != DType::kUndefined;
}

std::string WhyNot(const NodeView& node) {
  if (const std::string why = WhyExpertsUnsupported(node); !why.empty()) return why;
  if (const std::string kind = node.attributes.String("quant_type", "int"); kind != "int")
    return "QMoE with quant_type " + kind + " is not implemented";
  if (node.attributes.Int("weights_prepacked", -1) == 1)
    return "QMoE with weights in a layout of another provider is not implemented";
  for (size_t input = kGlobalScale; input < node.inputs.size(); ++input)
    if (IsGiven(node, input)) return "QMoE with scales of all of a weight or of activations is not implemented";
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const size_t weight = WeightInput(layer);
    if (!IsGiven(node, weight)) continue;
    const int64_t bits = BitsOfLayer(node.attributes, layer);
    if (bits != 2 && bits != 4 && bits != 8) return Concat("QMoE of ", bits, " bits is not implemented");
    if (!node.constant[weight] || (IsGiven(node, kFirstPoints + layer) && !node.constant[kFirstPoints + layer]))
      return "QMoE with weights or zero points that are no constants is not implemented";
    if (!IsGiven(node, weight + kScales) || node.inputs[weight + kScales] != node.inputs[kInput])
      return "QMoE with scales of another type than the input is not implemented";
  }
  return "";
}

constexpr DTypeSet kBytes{DType::kUInt8};
constexpr DTypeSet kFloat32{DType::kFloat32};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("input", kFloats),
               Input("router_probs", kFloats),
               Input("fc1_experts_weights", kBytes),
               OptionalInput("fc1_scales", kFloats),
               OptionalInput("fc1_experts_bias", kFloats),
               Input("fc2_experts_weights", kBytes),
               OptionalInput("fc2_scales", kFloats),
               OptionalInput("fc2_experts_bias", kFloats),
               OptionalInput("fc3_experts_weights", kBytes),
               OptionalInput("fc3_scales", kFloats),
               OptionalInput("fc3_experts_bias", kFloats),
               OptionalInput("fc1_zero_points", kBytes),
               OptionalInput("fc2_zero_points", kBytes),
               OptionalInput("fc3_zero_points", kBytes),
               OptionalInput("router_weights", kFloats),
               OptionalInput("fc1_global_scale", kFloat32),
               OptionalInput("fc2_global_scale", kFloat32),
               OptionalInput("fc1_act_scale", kFloat32),
               OptionalInput("fc2_act_scale", kFloat32),
               OptionalInput("fc1_act_block_scale", kFloats),
               OptionalInput("fc2_act_block_scale", kFloats)},
    .outputs = {Output("output", kFloats)},
    .attributes = ExpertAttributes({IntAttribute("expert_weight_bits", 4), IntAttribute("fc1_expert_weight_bits"),
                                    IntAttribute("fc2_expert_weight_bits"), IntAttribute("fc3_expert_weight_bits"),
                                    IntAttribute("block_size"), StringAttribute("quant_type", "int"),
                                    IntAttribute("weights_prepacked", -1), IntAttribute("accuracy_level", 0)}),
    .make = MakeKernel<QMoEKernel>,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
