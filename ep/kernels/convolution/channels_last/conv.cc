// Conv and FusedConv of two dimensions with channels last, in float32: dense with a constant weight, or depthwise. What
// the provider makes of convolutions whose neighbours are channels last, too (docs/decisions/0034). Most of 3 × 3 taps
// are computed by Winograd's filtering. With float32_matmul_precision=medium values are stored as bfloat16 and dense
// ones multiply them so, where the machine does.
#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/channels_last/dense.h"
#include "ep/kernels/convolution/channels_last/depthwise.h"
#include "ep/kernels/convolution/channels_last/device_floats.h"
#include "ep/kernels/convolution/channels_last/layout.h"
#include "ep/kernels/convolution/channels_last/tiles.h"
#include "ep/kernels/convolution/channels_last/winograd.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using channels_last::Dense;
using channels_last::Depthwise;
using channels_last::Finish;
using channels_last::PixelSource;
using channels_last::Tiles;
using channels_last::Winograd;

constexpr const char* kOp = "Conv";

bool AreOnes(const Attributes& attributes, const char* name) {
  const std::vector<int64_t> values = attributes.Ints(name);
  return std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 1; });
}

class ChannelsLastConv final : public Kernel {
 public:
  explicit ChannelsLastConv(const KernelInfo& info)
      : attributes_(info.attributes),
        groups_(convolution::ReadGroups(kOp, info.attributes)),
        activation_(kOp, info.attributes),
        layout_(info),
        single_steps_(AreOnes(info.attributes, "strides") && AreOnes(info.attributes, "dilations")),
        packed_(layout_.rounds ? DType::kBFloat16 : DType::kFloat32) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1) return false;
    const Shape& shape = weight_shape_ = constant.shape;
    const int64_t out = shape[0], channels = shape[1], taps = shape[2] * shape[3];
    if (groups_ != 1) {
      taps_first_.Allocate(constant.elements(), stream);
      stream.Launch(kOp, [=, this] {
        channels_last::TransposeEach(constant.as<const float>(), 1, out, taps, taps_first_.data());
      });
      stream.Synchronize();
      return true;
    }
    std::vector<float> rows;
    if (UsesWinograd()) {
      const int64_t columns = Winograd::StoredColumns(out);
      const auto points = [&] {
        rows = Winograd::RowsOf(constant.as<const float>(), out, channels);
        return gemm::Matrix::RowMajor(rows.data(), columns, channels).Transposed();
      };
      packed_.Pack(kOp, DType::kFloat32, channels, columns, points, stream);
      return true;
    }
    const int64_t stored = StoredChannels(), depth = taps * stored;
    // Rows: [channels out, taps, stored channels in].
    const auto matrix = [&] {
      rows.resize(static_cast<size_t>(out * depth));
      if (stored == channels) {
        channels_last::TransposeEach(constant.as<const float>(), out, channels, taps, rows.data());
      } else {
        for (int64_t i = 0; i < constant.elements(); ++i)
          rows[static_cast<size_t>((i / (channels * taps) * taps + i % taps) * stored + i / taps % channels)] =
              constant.as<const float>()[i];
      }
      return gemm::Matrix::RowMajor(rows.data(), out, depth).Transposed();
    };
    packed_.Pack(kOp, DType::kFloat32, depth, out, matrix, stream);
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), bias = ctx.Input(2), residual = ctx.Input(3);
    TensorView weight;
    weight.dtype = DType::kFloat32;
    weight.shape = weight_shape_;
    convolution::CheckOperands(kOp, x, weight, bias);
    const int64_t channels = x.shape[1], out = weight_shape_[0];
    NPU_OP_CHECK(kOp, channels == groups_ * weight_shape_[1], "expected W [M, C / group, kernel] for C = ", channels,
                 " and group = ", groups_, ", got shape ", weight_shape_);
    convolution::CheckBias(kOp, bias, out);
    const std::vector<pooling::Axis> axes = convolution::AxesOf(kOp, attributes_, x.shape, weight_shape_);
    Shape shape = pooling::OutputShape(x.shape, axes);
    shape[1] = out;
    NPU_OP_CHECK(kOp, !residual || (residual.dtype == x.dtype && residual.shape == shape),
                 "expected a residual of the output's type and shape ", shape, ", got shape ", residual.shape);
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    layout_.WithStored([&](auto type) { Run<decltype(type)>(ctx, axes, x, bias, residual, y); });
  }

 private:
  // T: the type of values that are channels last.
  template <class T>
  void Run(OpContext& ctx, const std::vector<pooling::Axis>& axes, const TensorView& x, const TensorView& bias,
           const TensorView& residual, const TensorView& y) const {
    if (groups_ == 1 && !UsesWinograd() && !UsesTiles()) return RunDense<T>(ctx, axes, x, bias, residual, y);
    const int64_t images = x.shape[0], out = weight_shape_[0];
    const float* biases = bias.as<const float>();
    const Finish<T> finish = FinishOf<T>(ctx, residual, y);
    if (groups_ != 1) {
      const T* pixels = channels_last::ReadChannelsLast<T>(ctx, kOp, x, layout_.Of(0));
      Launch(ctx, Depthwise<T>(axes, images, pixels, taps_first_.data(), biases, finish));
    } else if constexpr (std::is_same_v<T, float>) {
      const T* pixels = channels_last::ReadChannelsLast<T>(ctx, kOp, x, layout_.Of(0));
      const gemm::PackedMatrix points = packed_.matrix({nullptr, x.shape[1], Winograd::StoredColumns(out)});
      Launch(ctx, Winograd(axes, images, x.shape[1], pixels, points, biases, finish));
    } else {
      Launch(ctx, Tiles(axes, images, SourceOf<T>(x), Matrix(), biases, finish));
    }
    if (!layout_.output) channels_last::LaunchOrder(ctx, kOp, finish.floats, y);
  }

  // Planes at an end of a chain are transposed piece by piece.
  template <class T>
  void RunDense(OpContext& ctx, const std::vector<pooling::Axis>& axes, const TensorView& x, const TensorView& bias,
                const TensorView& residual, const TensorView& y) const {
    const bool planes = !layout_.output && !(residual && layout_.Of(3));
    const Finish<T> finish =
        planes ? Finish<T>{activation_, nullptr, nullptr, nullptr, weight_shape_[0]} : FinishOf<T>(ctx, residual, y);
    Dense<T> dense(axes, x.shape[0], SourceOf<T>(x), Matrix(), bias.as<const float>(), finish);
    if (planes) dense.To({y.as<float>(), residual.as<const float>(), weight_shape_[0], channels_last::Pixels(y)});
    Launch(ctx, std::move(dense));
    if (!layout_.output && !planes) channels_last::LaunchOrder(ctx, kOp, finish.floats, y);
  }

  template <class T>
  PixelSource<T> SourceOf(const TensorView& x) const {
    const bool pixels = layout_.Of(0);
    const int64_t positions = channels_last::Pixels(x);
    return {pixels ? x.as<const T>() : nullptr, pixels ? nullptr : x.as<const float>(), x.shape[1], positions,
            x.shape[0] * positions};
  }

  // What is not channels last is written so first.
  template <class T>
  Finish<T> FinishOf(OpContext& ctx, const TensorView& residual, const TensorView& y) const {
    Finish<T> finish{activation_, channels_last::ReadChannelsLast<T>(ctx, kOp, residual, layout_.Of(3)), nullptr,
                     nullptr, weight_shape_[0]};
    if (layout_.output) {
      finish.y = y.as<T>();
    } else {
      finish.floats = static_cast<float*>(ctx.Workspace(y.bytes()));
      if constexpr (std::is_same_v<T, float>) finish.y = finish.floats;
    }
    return finish;
  }
  gemm::PackedMatrix Matrix() const {
    return packed_.matrix({nullptr, weight_shape_[2] * weight_shape_[3] * StoredChannels(), weight_shape_[0]});
  }

  template <class Task>
  static void Launch(OpContext& ctx, Task task) {
    ctx.Launch(kOp, [task = std::move(task)] { task.Run(); });
  }

  bool UsesWinograd() const {
    return groups_ == 1 && !layout_.rounds && single_steps_ && Winograd::Suits(weight_shape_);
  }
  bool UsesTiles() const { return layout_.rounds && Tiles::Kernel() != nullptr; }
  int64_t StoredChannels() const {
    const int64_t channels = weight_shape_[1];
    if (UsesTiles()) return Tiles::StoredChannels(channels, weight_shape_[2] * weight_shape_[3]);
    return layout_.rounds ? Dense<BFloat16>::StoredChannels(channels) : Dense<float>::StoredChannels(channels);
  }

  Attributes attributes_;
  int64_t groups_;
  OutputActivation activation_;
  channels_last::Layout layout_;
  bool single_steps_;  // from pixel to pixel and from tap to tap
  Shape weight_shape_;
  gemm::PackedWeight packed_;
  channels_last::DeviceFloats taps_first_;  // [taps, channels] of a depthwise convolution
};

bool Within(const Attributes& attributes, const char* name, int64_t most) {
  const std::vector<int64_t> values = attributes.Ints(name);
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v <= most; });
}

std::string WhyUnsupported(const NodeView& node) {
  // Rows are copied with their padding and what strides leave out: neither may be most of it.
  constexpr int64_t kMostPadding = 16, kMostStride = 4, kMostTaps = 16;
  const std::vector<int64_t>& weight = node.shapes[1];
  if (!node.constant[1] || !node.rank_known[1] || weight.size() != 4 || weight[0] < 1 || weight[1] < 1)
    return "a weight that is not constant, or not of two dimensions";
  const int64_t groups = node.attributes.Int("group");
  if (groups != 1 && (weight[1] != 1 || weight[0] != groups)) return "groups of several channels";
  for (size_t d = 2; d < 4; ++d) {
    const std::vector<int64_t> dilations = node.attributes.Ints("dilations", {1, 1});
    if (weight[d] < 1 || weight[d] > kMostTaps || dilations.size() != 2 || dilations[d - 2] < 1 ||
        dilations[d - 2] > kMostTaps || (weight[d] - 1) * dilations[d - 2] > kMostTaps)
      return "a kernel without taps, or a large one";
  }
  if (!Within(node.attributes, "pads", kMostPadding) || !Within(node.attributes, "strides", kMostStride))
    return "much padding, or a large stride";
  return OutputActivation::WhyUnsupported(node.attributes);
}

// Of a convolution whose neighbours all have the plain order, which it converts from and to: it pays with several taps,
// but for very few channels, and for planes of few positions, whose rows and columns fill no vectors.
std::string WhyNotAlone(const NodeView& node) {
  if (std::string reason = WhyUnsupported(node); !reason.empty()) return reason;
  constexpr int64_t kFewChannels = 16, kFewOfWinograd = 24, kFewPositions = 256;
  constexpr const char* kSlow = "converting takes as long as it saves";
  const Shape weight(node.shapes[1]);
  if (node.attributes.Int("group") != 1 || weight[0] < kFewChannels || weight[1] < kFewChannels) return kSlow;
  const bool single_strides = AreOnes(node.attributes, "strides");
  if (weight[2] * weight[3] == 1) {
    const std::vector<int64_t>& x = node.shapes[0];
    const bool known = node.rank_known[0] && x.size() == 4 && x[2] > 0 && x[3] > 0;
    // Of one position the two orders are the same.
    return known && single_strides && x[2] * x[3] > 1 && x[2] * x[3] <= kFewPositions ? "" : kSlow;
  }
  const bool winograd = Winograd::Suits(weight) && single_strides && AreOnes(node.attributes, "dilations");
  return winograd && weight[1] < kFewOfWinograd ? kSlow : "";
}

OpDef Definition(const char* type, std::vector<ArgDef> inputs, std::vector<AttrDef> attributes,
                 std::string (*unsupported)(const NodeView&)) {
  return {
      .domain = "npu.channels_last",
      .type = type,
      .inputs = std::move(inputs),
      .outputs = {Output("Y", channels_last::kFloat32)},
      .attributes =
          channels_last::LayoutAttributes({0, 3}, true, convolution::ConvolutionAttributes(std::move(attributes))),
      .make = MakeKernel<ChannelsLastConv>,
      .unsupported = unsupported,
  };
}

OpDef ConvDef(const char* type, std::string (*unsupported)(const NodeView&)) {
  return Definition(type,
                    {Input("X", channels_last::kFloat32), Input("W", channels_last::kFloat32),
                     OptionalInput("B", channels_last::kFloat32)},
                    {}, unsupported);
}
OpDef FusedConvDef(const char* type, std::string (*unsupported)(const NodeView&)) {
  return Definition(type,
                    {Input("X", channels_last::kFloat32), Input("W", channels_last::kFloat32),
                     OptionalInput("B", channels_last::kFloat32), OptionalInput("Z", channels_last::kFloat32)},
                    OutputActivation::Definitions(), unsupported);
}

NPU_ONNX_KERNEL(ConvDef("Conv", WhyUnsupported));
NPU_ONNX_KERNEL(FusedConvDef("FusedConv", WhyUnsupported));
NPU_ONNX_KERNEL(ConvDef("LoneConv", WhyNotAlone));
NPU_ONNX_KERNEL(FusedConvDef("LoneFusedConv", WhyNotAlone));

}  // namespace
}  // namespace npu
