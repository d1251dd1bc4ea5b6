// npu_deformable_conv2d(input, weight, offset, bias; kernel_size, stride, padding, dilation, groups, deformable_groups,
// modulated) -> y, deformable_offsets. The semantics are in npu_deformable_conv2d.py.
#include "contrib_ops/convolution/npu_deformable_conv2d.h"

#include <limits>

#include "ep/kernels/convolution/deformable.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUDeformableConv2d::In;
using Out = nodes::NPUDeformableConv2d::Out;
using convolution::DeformableSizes;
using convolution::FloatWorkspace;

constexpr const char* kOp = "npu_deformable_conv2d";

// The samples side by side, [height * kh, width * kw].
void Spread(const float* taken, const DeformableSizes& s, float* spread) {
  for (int64_t tap = 0; tap < s.taps(); ++tap) {
    for (int64_t at = 0; at < s.positions(); ++at) {
      const int64_t row = at / s.width * s.kh + tap / s.kw, column = at % s.width * s.kw + tap % s.kw;
      spread[row * s.width * s.kw + column] = *taken++;
    }
  }
}

class DeformableConv2dKernel final : public Kernel {
 public:
  explicit DeformableConv2dKernel(const KernelInfo& info)
      : kernel_(info.attributes.Ints("kernel_sizes")),
        stride_(info.attributes.Ints("strides")),
        padding_(info.attributes.Ints("paddings")),
        dilation_(info.attributes.Ints("dilations")),
        groups_(info.attributes.Int("groups")),
        sets_(info.attributes.Int("deformable_groups")),
        modulated_(info.attributes.Bool("modulated")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input), w = ctx.Input(In::weight), offset = ctx.Input(In::offset),
                     bias = ctx.Input(In::bias);
    const DeformableSizes s = Check(x, w, offset, bias);
    const FloatResults y(ctx, ctx.Output(Out::y, x.dtype, {s.batch, s.channels_out, s.height, s.width}));
    const Shape spread_shape{s.batch, s.channels, s.height * s.kh, s.width * s.kw};
    const TensorView spread = ctx.Output(Out::deformable_offsets, DType::kFloat32, spread_shape);
    if (y.elements() == 0 && spread_shape.Elements() == 0) return;
    float* taken = FloatWorkspace(ctx, {s.channels, s.taps(), s.height, s.width});
    void* packed = s.PackedBytes() == 0 ? nullptr : ctx.Workspace(s.PackedBytes());
    const FloatValues inputs(ctx, x), weights(ctx, w), offsets(ctx, offset);
    const FloatValues biases(ctx, bias ? bias : w);
    ctx.Launch(kOp, [=, has_bias = bias.present] {
      if (s.batch == 0) return;
      const float* from = x.elements() == 0 ? nullptr : inputs.Load(kOp);
      const float* filters = w.elements() == 0 ? nullptr : weights.Load(kOp);
      const float *moves = offsets.Load(kOp), *added = has_bias ? biases.Load(kOp) : nullptr;
      for (int64_t n = 0; n < s.batch; ++n) {
        const int64_t planes = s.sets * s.taps(), positions = s.positions();
        const float* of_image = moves + n * 3 * planes * positions;  // all x, all y, all masks
        ParallelFor(s.channels, 1, [&](int64_t begin, int64_t end) {
          for (int64_t c = begin; c < end; ++c) {
            const int64_t plane = n * s.channels + c, size = s.taps() * positions;
            const auto offsets_of = [&](int64_t tap) -> convolution::TapOffsets<float> {
              const float* dx = of_image + (s.SetOf(c) * s.taps() + tap) * positions;
              return {dx + planes * positions, dx, dx + 2 * planes * positions};
            };
            convolution::SamplePlane(from + plane * s.rows * s.columns, s, offsets_of, taken + c * size);
            if (spread) Spread(taken + c * size, s, spread.as<float>() + plane * size);
          }
        });
        convolution::MultiplySamples(s, taken, filters, added, packed, y.values() + n * s.channels_out * positions);
      }
      y.Store(kOp);
    });
  }

 private:
  static void CheckNumbers(const char* name, const std::vector<int64_t>& numbers, size_t length, int64_t least) {
    bool fits = numbers.size() == length;
    for (const int64_t n : numbers) fits &= n >= least && n <= std::numeric_limits<int32_t>::max();
    NPU_OP_CHECK(kOp, fits, "expected ", name, " of ", length, " int32 numbers >= ", least, ", got ", Shape(numbers));
  }

  DeformableSizes Check(const TensorView& x, const TensorView& w, const TensorView& offset,
                        const TensorView& bias) const {
    const auto check_rank = [](const char* name, const TensorView& view) {
      NPU_OP_CHECK(kOp, view && view.shape.rank() == 4, "expected ", name, " of rank 4, got ", view.shape);
    };
    check_rank("input", x);
    check_rank("weight", w);
    check_rank("offset", offset);
    CheckNumbers("kernel_size", kernel_, 2, 1);
    CheckNumbers("stride", stride_, 4, 1);
    CheckNumbers("padding", padding_, 4, 0);
    CheckNumbers("dilation", dilation_, 4, 1);
    NPU_OP_CHECK(kOp, modulated_, "expected modulated True, got False");
    const int64_t channels = x.shape[1], kh = kernel_[0], kw = kernel_[1];
    NPU_OP_CHECK(kOp, groups_ > 0 && channels % groups_ == 0, "expected groups to divide the ", channels,
                 " channels, got ", groups_);
    NPU_OP_CHECK(kOp, sets_ > 0 && channels % sets_ == 0, "expected deformable_groups to divide the ", channels,
                 " channels, got ", sets_);
    NPU_OP_CHECK(kOp,
                 w.shape[1] == channels / groups_ && w.shape[2] == kh && w.shape[3] == kw && w.shape[0] % groups_ == 0,
                 "expected weight [Co, ", channels / groups_, ", ", kh, ", ", kw, "] with Co a multiple of groups ",
                 groups_, ", got ", w.shape);
    const int64_t height = ResultSize(x.shape[2] + padding_[0] + padding_[1], kh, dilation_[2], stride_[2]);
    const int64_t width = ResultSize(x.shape[3] + padding_[2] + padding_[3], kw, dilation_[3], stride_[3]);
    NPU_OP_CHECK(kOp, height > 0 && width > 0, "expected a kernel that fits the padded input, got a result of ", height,
                 " by ", width);
    const Shape expected{x.shape[0], 3 * sets_ * kh * kw, height, width};
    NPU_OP_CHECK(kOp, offset.shape == expected, "expected offset of shape ", expected, ", got ", offset.shape);
    NPU_OP_CHECK(kOp, !bias || bias.shape == Shape{w.shape[0]}, "expected bias of shape ", Shape{w.shape[0]}, ", got ",
                 bias.shape);
    const auto check_dtype = [&x](const char* name, const TensorView& view) {
      NPU_OP_CHECK(kOp, !view || view.dtype == x.dtype, "expected ", name, " of the dtype of input, ", NameOf(x.dtype),
                   ", got ", NameOf(view.dtype));
    };
    check_dtype("weight", w);
    check_dtype("offset", offset);
    check_dtype("bias", bias);
    return {x.shape[0], channels,   x.shape[2],  x.shape[3],  w.shape[0],   height,       width,   kh,   kw,
            stride_[2], stride_[3], padding_[0], padding_[2], dilation_[2], dilation_[3], groups_, sets_};
  }

  // Rounded down also below zero.
  static int64_t ResultSize(int64_t padded, int64_t taps, int64_t gap, int64_t step) {
    const int64_t room = padded - ((taps - 1) * gap + 1);
    return (room >= 0 ? room / step : -((step - 1 - room) / step)) + 1;
  }

  std::vector<int64_t> kernel_, stride_, padding_, dilation_;
  int64_t groups_, sets_;
  bool modulated_;
};

NPU_KERNEL(NPUDeformableConv2d, DeformableConv2dKernel);

}  // namespace
}  // namespace npu
