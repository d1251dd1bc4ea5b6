// ConvBatchNormalization: activation((Conv(X, W, B) - mean) / sqrt(variance + epsilon) * scale + shift + Z), what a
// fusion rule of the provider makes of a convolution whose weight and statistics are constant. Both are folded into a
// weight and a bias once, and FusedConv of the same domain does the rest.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/activation/output_activation.h"
#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/channels_last/device_floats.h"
#include "ep/kernels/convolution/channels_last/layout.h"
#include "ep/kernels/onnx_step.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using channels_last::DeviceFloats;

constexpr const char* kOp = "ConvBatchNormalization";
constexpr size_t kWeight = 1, kBias = 2, kResidual = 3, kScale = 4, kShift = 5, kMean = 6, kVariance = 7, kInputs = 8;

TensorView FloatsOf(const DeviceFloats& floats, const Shape& shape) {
  return {floats.data(), DType::kFloat32, true, shape};
}

template <bool kChannelsLast>
class NormalizedConv final : public Kernel {
 public:
  explicit NormalizedConv(const KernelInfo& info) : epsilon_(info.attributes.Float("epsilon")) {
    KernelInfo conv = info;
    conv.op_type = "FusedConv";
    conv.input_count = kResidual + 1;
    if (conv.input_dtypes.size() > conv.input_count) conv.input_dtypes.resize(conv.input_count);
    if (conv.input_shapes.size() > conv.input_count) conv.input_shapes.resize(conv.input_count);
    conv_ = OpRegistry::Instance().Find(kChannelsLast ? "npu.channels_last" : "npu.fused", "FusedConv", 1)->make(conv);
  }

  // In the order of inputs: everything is there when the variance is.
  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input == 0 || input == kResidual || input >= kInputs) return false;
    given_[input].Allocate(constant.elements(), stream);
    stream.Launch(kOp,
                  [=, to = given_[input].data()] { std::copy_n(constant.as<const float>(), constant.elements(), to); });
    stream.Synchronize();
    if (input == kWeight) weight_shape_ = constant.shape;
    if (input == kVariance) Fold(stream);
    return true;
  }

  void Compute(OpContext& ctx) const override {
    NPU_OP_CHECK(kOp, bias_.data() != nullptr, "expected a constant weight and constant statistics");
    const TensorView weight = packed_ ? TensorView{} : FloatsOf(given_[kWeight], weight_shape_);
    const TensorView bias = FloatsOf(bias_, Shape{weight_shape_[0]});
    StepContext folded(ctx, {ctx.Input(0), weight, bias, ctx.Input(kResidual)}, StepContext::Result(ctx));
    conv_->Compute(folded);
  }

 private:
  void Fold(Stream& stream) {
    const int64_t out = weight_shape_[0], each = weight_shape_.Elements(1, weight_shape_.rank());
    bias_.Allocate(out, stream);
    stream.Launch(kOp, [=, this] {
      float *weight = given_[kWeight].data(), *bias = bias_.data();
      const float *scale = given_[kScale].data(), *shift = given_[kShift].data(), *own = given_[kBias].data();
      const float *mean = given_[kMean].data(), *variance = given_[kVariance].data();
      ParallelFor(out, RowGrain(each), [=, epsilon = epsilon_](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
          const double by = scale[m] / std::sqrt(static_cast<double>(variance[m]) + epsilon);
          const double from = (own == nullptr ? 0.0 : static_cast<double>(own[m])) - mean[m];
          bias[m] = static_cast<float>(from * by + shift[m]);
          for (int64_t i = m * each; i < (m + 1) * each; ++i) weight[i] = static_cast<float>(weight[i] * by);
        }
      });
    });
    stream.Synchronize();
    packed_ = conv_->PrePack(kWeight, FloatsOf(given_[kWeight], weight_shape_), stream);
    for (size_t i = kWeight; i < kInputs; ++i)
      if (i != kWeight || packed_) given_[i].Free();
  }

  double epsilon_;
  std::unique_ptr<Kernel> conv_;
  Shape weight_shape_;
  DeviceFloats given_[kInputs], bias_;
  bool packed_ = false;
};

// Every constant has to be one, of as many channels as the weight has.
std::string WhyNotFolded(const NodeView& node) {
  const std::vector<int64_t>& weight = node.shapes[kWeight];
  if (!node.constant[kWeight] || weight.size() < 3 ||
      std::any_of(weight.begin(), weight.end(), [](int64_t d) { return d < 1; }))
    return "a weight that is not constant, or empty";
  for (const size_t i : {kBias, kScale, kShift, kMean, kVariance}) {
    if (i == kBias && node.inputs[i] == DType::kUndefined) continue;
    if (!node.constant[i] || node.shapes[i] != std::vector<int64_t>{weight[0]})
      return "statistics that are not constant, or not one for each channel";
  }
  return "";
}

OpDef Definition(bool channels_last) {
  constexpr DTypeSet kTypes{DType::kFloat32};
  const char* domain = channels_last ? "npu.channels_last" : "npu.fused";
  std::vector<AttrDef> attributes = OutputActivation::Definitions();
  attributes.push_back(FloatAttribute("epsilon", 1e-5));
  attributes = convolution::ConvolutionAttributes(std::move(attributes));
  if (channels_last) attributes = channels_last::LayoutAttributes({0, kResidual}, true, std::move(attributes));
  return {
      .domain = domain,
      .type = kOp,
      .inputs = {Input("X", kTypes), Input("W", kTypes), OptionalInput("B", kTypes), OptionalInput("Z", kTypes),
                 Input("scale", kTypes), Input("shift", kTypes), Input("mean", kTypes), Input("variance", kTypes)},
      .outputs = {Output("Y", kTypes)},
      .attributes = std::move(attributes),
      .make = channels_last ? MakeKernel<NormalizedConv<true>> : MakeKernel<NormalizedConv<false>>,
      .unsupported =
          [domain](const NodeView& node) {
            const std::string why = WhyNotFolded(node);
            return why.empty() ? OpRegistry::Instance().Find(domain, "FusedConv", 1)->unsupported(node) : why;
          },
  };
}

NPU_ONNX_KERNEL(Definition(false));
NPU_ONNX_KERNEL(Definition(true));

}  // namespace
}  // namespace npu
