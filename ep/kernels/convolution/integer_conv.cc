// ConvInteger and QLinearConv (ai.onnx 10): convolutions of 8-bit operands less their zero points, summed in int32; of
// QLinearConv quantised again. The product is that of Conv; padding reads the input's zero point.
#include <algorithm>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/columns.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/kernels/quantization/requantize.h"

namespace npu {
namespace {

using convolution::Taps;

constexpr int64_t kColumnsBytes = 256 << 10;  // of a piece of columns, which then stays in the second-level cache
constexpr int64_t kColumnsMultiple = 64;      // whole panels of the product

thread_local gemm::AlignedBuffer columns_buffer, sums_buffer;

struct IntegerConvolution {
  Taps taps;
  TensorView x, weight, x_zero, weight_zero, bias;  // the last three may be absent
  int64_t groups;
  TensorView y;  // int32, or 8-bit integers

  // `quantize`: null where y is the sums.
  void Run(const Requantization* quantize) const {
    const int64_t images = x.shape[0], out = weight.shape[0], channels = weight.shape[1];
    const int64_t depth = channels * taps.count(), outputs = taps.outputs();
    const int32_t padding = x_zero ? ByteAt(x_zero, 0) : 0;
    std::vector<int32_t> zeros(static_cast<size_t>(out), 0);
    for (int64_t m = 0; weight_zero && m < out; ++m)
      zeros[static_cast<size_t>(m)] = ByteAt(weight_zero, weight_zero.elements() == 1 ? 0 : m);
    const int64_t fitting = kColumnsBytes / std::max<int64_t>(1, depth) / kColumnsMultiple * kColumnsMultiple;
    const int64_t width = std::clamp(fitting, kColumnsMultiple, std::max(outputs, kColumnsMultiple));
    const int64_t pieces = (outputs + width - 1) / width, rows = out / groups;
    ParallelFor(images * groups * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t group = item / pieces % groups, image = item / pieces / groups;
        const int64_t first = item % pieces * width, count = std::min(width, outputs - first);
        const auto* planes = x.as<const uint8_t>() + (image * groups + group) * channels * taps.inputs();
        gemm::Matrix columns{planes, depth, count, outputs, 1};
        if (!taps.pointwise()) {
          auto* buffer = static_cast<uint8_t*>(columns_buffer.Reserve(depth * count));
          convolution::ReadColumns(taps, planes, channels, first, first + count, buffer, count,
                                   static_cast<uint8_t>(padding));
          columns = gemm::Matrix::RowMajor(buffer, depth, count);
        } else {
          columns.data = planes + first;
        }
        const gemm::Matrix filters =
            gemm::Matrix::RowMajor(weight.as<const char>() + group * rows * depth, rows, depth);
        const int64_t at = (image * out + group * rows) * outputs + first;
        gemm::Result sums{y.as<int32_t>() + at, DType::kInt32, outputs};
        if (quantize != nullptr) sums = {sums_buffer.Reserve(rows * count * 4), DType::kInt32, count};
        gemm::Epilogue epilogue;
        epilogue.integers.a_zero_point = {zeros.data() + group * rows, 1};
        epilogue.integers.b_zero_point = {&padding, 0};
        gemm::Multiply(weight.dtype, filters, x.dtype, columns, sums, epilogue);
        for (int64_t row = 0; quantize != nullptr && row < rows; ++row) {
          auto* line = static_cast<int32_t*>(sums.data) + row * count;
          const uint32_t added = bias ? static_cast<uint32_t>(bias.as<const int32_t>()[group * rows + row]) : 0;
          for (int64_t i = 0; i < count; ++i) line[i] = static_cast<int32_t>(static_cast<uint32_t>(line[i]) + added);
          quantize->Row(line, group * rows + row, false, count, y.as<char>() + at + row * outputs);
        }
      }
    });
  }
};

// The operands of a node, checked. `weight_zero` has one element or one for each output channel.
IntegerConvolution Prepare(const char* op, const Attributes& attributes, TensorView x, TensorView weight,
                           TensorView x_zero, TensorView weight_zero, TensorView bias) {
  const int64_t groups = convolution::ReadGroups(op, attributes);
  NPU_CHECK(x.shape.rank() >= 3 && weight.shape.rank() == x.shape.rank(), "[", op,
            "] expected x [N, C, spatial dimensions] and w of the same rank, got shapes ", x.shape, " and ",
            weight.shape);
  const int64_t channels = x.shape[1], out = weight.shape[0];
  NPU_CHECK(channels % groups == 0 && channels / groups == weight.shape[1] && out % groups == 0, "[", op,
            "] expected w [M, C / group, kernel] for C = ", channels, " and group = ", groups, ", got shape ",
            weight.shape);
  NPU_CHECK(!x_zero || (x_zero.dtype == x.dtype && x_zero.elements() == 1), "[", op,
            "] expected x_zero_point to be one ", NameOf(x.dtype), ", got ", NameOf(x_zero.dtype), " ", x_zero.shape);
  NPU_CHECK(!weight_zero ||
                (weight_zero.dtype == weight.dtype && (weight_zero.elements() == 1 || weight_zero.shape == Shape{out})),
            "[", op, "] expected w_zero_point to be one ", NameOf(weight.dtype), ", or one for each of ", out,
            " output channels, got ", NameOf(weight_zero.dtype), " ", weight_zero.shape);
  convolution::CheckBias(op, bias, out);
  Taps taps(convolution::AxesOf(op, attributes, x.shape, weight.shape));
  return {std::move(taps), x, weight, x_zero, weight_zero, bias, groups, {}};
}

Shape OutputShape(const IntegerConvolution& conv) {
  Shape shape = pooling::OutputShape(conv.x.shape, conv.taps.axes());
  shape[1] = conv.weight.shape[0];
  return shape;
}

class ConvIntegerKernel final : public Kernel {
 public:
  explicit ConvIntegerKernel(const KernelInfo& info) : attributes_(info.attributes) {}
  void Compute(OpContext& ctx) const override {
    IntegerConvolution conv =
        Prepare("ConvInteger", attributes_, ctx.Input(0), ctx.Input(1), ctx.Input(2), ctx.Input(3), {});
    conv.y = ctx.Output(0, DType::kInt32, OutputShape(conv));
    if (conv.y.elements() > 0) ctx.Launch("ConvInteger", [conv = std::move(conv)] { conv.Run(nullptr); });
  }

 private:
  Attributes attributes_;
};

class QLinearConvKernel final : public Kernel {
 public:
  explicit QLinearConvKernel(const KernelInfo& info) : attributes_(info.attributes) {}
  void Compute(OpContext& ctx) const override {
    IntegerConvolution conv =
        Prepare("QLinearConv", attributes_, ctx.Input(0), ctx.Input(3), ctx.Input(2), ctx.Input(5), ctx.Input(8));
    Requantization quantize("QLinearConv", ctx.Input(1), ctx.Input(4), ctx.Input(6), ctx.Input(7),
                            conv.weight.shape[0]);
    conv.y = ctx.Output(0, quantize.dtype(), OutputShape(conv));
    if (conv.y.elements() == 0) return;
    ctx.Launch("QLinearConv", [conv = std::move(conv), quantize]() mutable {
      quantize.Load();
      conv.Run(&quantize);
    });
  }

 private:
  Attributes attributes_;
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
