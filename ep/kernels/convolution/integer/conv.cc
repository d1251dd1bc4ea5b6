// ConvInteger and QLinearConv (ai.onnx 10): convolutions of 8-bit operands less their zero points, summed in int32; of
// QLinearConv quantised again. Padding reads the input's zero point. The input is brought to channels last, so that
// what an output reads is a row of few pieces, or one in the image itself (docs/decisions/0038).
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/integer/depthwise.h"
#include "ep/kernels/convolution/integer/product.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/kernels/quantization/requantize.h"

namespace npu {
namespace {

using convolution::FilterColumns;
using convolution::IntegerFinish;
using convolution::Taps;

struct IntegerConvolution {
  Taps taps;
  TensorView x, weight, x_zero, weight_zero, bias;  // the last three may be absent
  int64_t groups;
  TensorView y = {};  // int32, or 8-bit integers

  // In device memory.
  uint8_t* pixels = nullptr;       // x channels last
  const void* panels = nullptr;    // of the weight
  uint8_t* own_columns = nullptr;  // and own_panels: where to pack a weight that is not constant
  void* own_panels = nullptr;

  FilterColumns columns() const { return {groups, weight.shape[0], weight.shape[1], taps.count()}; }
  bool depthwise() const { return IsDepthwise(weight.shape, groups); }
  static bool IsDepthwise(const Shape& weight, int64_t groups) {
    return groups > 1 && weight[1] == 1 && weight[0] == groups;
  }

  void Reserve(OpContext& ctx) {
    pixels = static_cast<uint8_t*>(
        ctx.Workspace(x.bytes() + static_cast<size_t>(convolution::RowReader::Slack(x.shape[1]))));
    if (panels != nullptr || depthwise()) return;
    const FilterColumns c = columns();
    own_panels = ctx.Workspace(gemm::PackedBytes(weight.dtype, c.depth(), c.count()));
    own_columns = static_cast<uint8_t*>(ctx.Workspace(BytesFor(weight.dtype, c.count() * c.depth())));
  }

  // `quantize`: null where y is the sums.
  void Run(const Requantization* quantize) const {
    const int64_t images = x.shape[0], channels = x.shape[1], out = weight.shape[0];
    const IntegerFinish finish{quantize, y, out, taps.outputs()};
    const int32_t zero = x_zero ? ByteAt(x_zero, 0) : 0;
    std::vector<int32_t> zeros(static_cast<size_t>(out), 0);
    for (int64_t m = 0; weight_zero && m < out; ++m)
      zeros[static_cast<size_t>(m)] = ByteAt(weight_zero, weight_zero.elements() == 1 ? 0 : m);
    const int32_t* added = bias.as<const int32_t>();
    if (depthwise()) {
      convolution::BytesToChannelsLast(x.as<const uint8_t>(), images, channels, taps.inputs(), 0, pixels);
      convolution::IntegerDepthwise(taps, images, x.dtype, pixels, zero, weight, zeros, added, finish).Run();
      return;
    }
    if (own_panels != nullptr) gemm::Pack(weight.dtype, columns().Fill(weight, own_columns), own_panels, weight.dtype);
    const gemm::MicroKernel& kernel = gemm::SelectKernel(x.dtype, gemm::PanelFormat::kQuads, taps.outputs());
    const int32_t shift = gemm::SliverShift(kernel.sliver_format, x.dtype);
    const auto flip = static_cast<uint8_t>(shift);  // 128 added or subtracted
    convolution::BytesToChannelsLast(x.as<const uint8_t>(), images, channels, taps.inputs(), flip, pixels);
    std::vector<uint32_t> stored_zeros;
    for (const int32_t each : zeros)
      stored_zeros.push_back(static_cast<uint32_t>(each - gemm::StoredShift(weight.dtype)));
    const bool centred = std::all_of(stored_zeros.begin(), stored_zeros.end(), [](uint32_t z) { return z == 0; });
    const convolution::IntegerOffsets offsets{static_cast<uint32_t>(zero + shift),
                                              centred ? nullptr : stored_zeros.data(), added};
    const bool unsigned_x = (x.dtype == DType::kUInt8) == (shift == 0);
    convolution::IntegerProduct(taps, images, columns(), kernel, unsigned_x, pixels,
                                own_panels != nullptr ? own_panels : panels, offsets, finish)
        .Run();
  }
};

// A constant weight, packed, but for those of depthwise convolutions.
class PackedFilters {
 public:
  bool Pack(const char* op, const Attributes& attributes, const TensorView& weight, Stream& stream) {
    const int64_t groups = attributes.Int("group");
    const Shape& shape = weight.shape;
    if (shape.rank() < 3 || groups <= 0 || shape[0] % groups != 0 || weight.elements() == 0) return false;
    if (IntegerConvolution::IsDepthwise(shape, groups)) return false;
    const FilterColumns columns{groups, shape[0], shape[1], shape.Elements(2, shape.rank())};
    std::vector<uint8_t> bytes;
    const auto matrix = [&] {
      bytes.resize(static_cast<size_t>(columns.count() * columns.depth()));
      return columns.Fill(weight, bytes.data());
    };
    packed_.Pack(op, weight.dtype, columns.depth(), columns.count(), matrix, stream);
    weight_.dtype = weight.dtype;
    weight_.shape = shape;
    return true;
  }

  // The weight, without its elements if it is packed.
  TensorView Of(const TensorView& given) const { return packed_ ? weight_ : given; }
  const void* panels() const { return packed_ ? packed_.matrix({}).data : nullptr; }

 private:
  gemm::PackedWeight packed_;
  TensorView weight_;
};

// The operands of a node, checked. `weight_zero` has one element or one for each output channel.
IntegerConvolution Prepare(const char* op, const Attributes& attributes, TensorView x, TensorView weight,
                           TensorView x_zero, TensorView weight_zero, TensorView bias) {
  const int64_t groups = convolution::ReadGroups(op, attributes);
  NPU_OP_CHECK(op, x.shape.rank() >= 3 && weight.shape.rank() == x.shape.rank(),
               "expected x [N, C, spatial dimensions] and w of the same rank, got shapes ", x.shape, " and ",
               weight.shape);
  const int64_t channels = x.shape[1], out = weight.shape[0];
  NPU_OP_CHECK(op, channels % groups == 0 && channels / groups == weight.shape[1] && out % groups == 0,
               "expected w [M, C / group, kernel] for C = ", channels, " and group = ", groups, ", got shape ",
               weight.shape);
  NPU_OP_CHECK(op, !x_zero || (x_zero.dtype == x.dtype && x_zero.elements() == 1), "expected x_zero_point to be one ",
               NameOf(x.dtype), ", got ", NameOf(x_zero.dtype), " ", x_zero.shape);
  NPU_OP_CHECK(op,
               !weight_zero || (weight_zero.dtype == weight.dtype &&
                                (weight_zero.elements() == 1 || weight_zero.shape == Shape{out})),
               "expected w_zero_point to be one ", NameOf(weight.dtype), ", or one for each of ", out,
               " output channels, got ", NameOf(weight_zero.dtype), " ", weight_zero.shape);
  convolution::CheckBias(op, bias, out);
  Taps taps(convolution::AxesOf(op, attributes, x.shape, weight.shape));
  return {std::move(taps), x, weight, x_zero, weight_zero, bias, groups};
}

Shape OutputShape(const IntegerConvolution& conv) {
  Shape shape = pooling::OutputShape(conv.x.shape, conv.taps.axes());
  shape[1] = conv.weight.shape[0];
  return shape;
}

class IntegerConvKernel : public Kernel {
 public:
  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == at_.weight && filters_.Pack(op_, attributes_, constant, stream);
  }
  void Compute(OpContext& ctx) const override {
    IntegerConvolution conv =
        Prepare(op_, attributes_, ctx.Input(at_.x), filters_.Of(ctx.Input(at_.weight)), ctx.Input(at_.x_zero),
                ctx.Input(at_.weight_zero), at_.bias ? ctx.Input(*at_.bias) : TensorView{});
    std::optional<Requantization> quantize = Quantize(ctx, conv.weight.shape[0]);
    conv.y = ctx.Output(0, quantize ? quantize->dtype() : DType::kInt32, OutputShape(conv));
    if (conv.y.elements() == 0) return;
    conv.panels = filters_.panels();
    conv.Reserve(ctx);
    ctx.Launch(op_, [conv = std::move(conv), quantize]() mutable {
      if (quantize) quantize->Load();
      conv.Run(quantize ? &*quantize : nullptr);
    });
  }

 protected:
  struct Inputs {
    size_t x, weight, x_zero, weight_zero;
    std::optional<size_t> bias = {};
  };
  IntegerConvKernel(const char* op, const KernelInfo& info, Inputs at)
      : op_(op), attributes_(info.attributes), at_(at) {}

 private:
  // None: the results are the sums.
  virtual std::optional<Requantization> Quantize(OpContext&, int64_t) const { return std::nullopt; }

  const char* op_;
  Attributes attributes_;
  Inputs at_;
  PackedFilters filters_;
};

class ConvIntegerKernel final : public IntegerConvKernel {
 public:
  explicit ConvIntegerKernel(const KernelInfo& info)
      : IntegerConvKernel("ConvInteger", info, {.x = 0, .weight = 1, .x_zero = 2, .weight_zero = 3}) {}
};

class QLinearConvKernel final : public IntegerConvKernel {
 public:
  explicit QLinearConvKernel(const KernelInfo& info)
      : IntegerConvKernel("QLinearConv", info, {.x = 0, .weight = 3, .x_zero = 2, .weight_zero = 5, .bias = 8}) {}

 private:
  std::optional<Requantization> Quantize(OpContext& ctx, int64_t channels) const override {
    return Requantization("QLinearConv", ctx.Input(1), ctx.Input(4), ctx.Input(6), ctx.Input(7), channels);
  }
};

constexpr DTypeSet kScale{DType::kFloat32};

NPU_ONNX_KERNEL({
    .type = "ConvInteger",
    .since = 10,
    .until = 10,
    .inputs = {Input("x", kByteTypes), Input("w", kByteTypes), OptionalInput("x_zero_point", kByteTypes),
               OptionalInput("w_zero_point", kByteTypes)},
    .outputs = {Output("y", {DType::kInt32})},
    .attributes = convolution::ConvolutionAttributes(),
    .make = MakeKernel<ConvIntegerKernel>,
});
NPU_ONNX_KERNEL({
    .type = "QLinearConv",
    .since = 10,
    .until = 10,
    .inputs = {Input("x", kByteTypes), Input("x_scale", kScale), Input("x_zero_point", kByteTypes),
               Input("w", kByteTypes), Input("w_scale", kScale), Input("w_zero_point", kByteTypes),
               Input("y_scale", kScale), Input("y_zero_point", kByteTypes), OptionalInput("B", {DType::kInt32})},
    .outputs = {Output("y", kByteTypes)},
    .attributes = convolution::ConvolutionAttributes(),
    .make = MakeKernel<QLinearConvKernel>,
});

}  // namespace
}  // namespace npu
