// DeformConv (ai.onnx 19 to 22) of images: a convolution whose taps read between pixels, where the offsets say.
// Computed in float32, or float64 where X is.
#include <algorithm>
#include <vector>

#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/deformable.h"
#include "ep/kernels/float_values.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using convolution::DeformableSizes;
using pooling::Axis;

constexpr const char* kOp = "DeformConv";

class DeformConvKernel final : public Kernel {
 public:
  explicit DeformConvKernel(const KernelInfo& info)
      : attributes_(info.attributes),
        groups_(convolution::ReadGroups(kOp, info.attributes)),
        sets_(info.attributes.Int("offset_group")) {
    NPU_OP_CHECK(kOp, sets_ > 0, "expected an offset_group of 1 or more, got ", sets_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), w = ctx.Input(1), offset = ctx.Input(2), bias = ctx.Input(3),
                     mask = ctx.Input(4);
    const DeformableSizes s = Check(x, w, offset, bias, mask);
    const TensorView out = ctx.Output(0, x.dtype, {s.batch, s.channels_out, s.height, s.width});
    if (out.elements() == 0) return;
    const Shape samples{s.channels, s.taps(), s.height, s.width};
    if (x.dtype == DType::kFloat64) {
      auto* taken =
          static_cast<double*>(ctx.Workspace(BytesFor(DType::kFloat64, std::max<int64_t>(samples.Elements(), 1))));
      ctx.Launch(kOp, [=] {
        Run<double>(s, {x.as<double>(), w.as<double>(), offset.as<double>(), bias.as<double>(), mask.as<double>()},
                    taken, nullptr, out.as<double>());
      });
      return;
    }
    float* taken = convolution::FloatWorkspace(ctx, samples);
    void* packed = s.depth() == 0 ? nullptr : ctx.Workspace(s.PackedBytes());
    const FloatResults y(ctx, out);
    const FloatValues inputs(ctx, x), weights(ctx, w), offsets(ctx, offset), biases(ctx, bias ? bias : w),
        masks(ctx, mask ? mask : w);
    ctx.Launch(kOp, [=, has_bias = bias.present, has_mask = mask.present] {
      const Operands<float> operands{x.elements() == 0 ? nullptr : inputs.Load(kOp),
                                     w.elements() == 0 ? nullptr : weights.Load(kOp), offsets.Load(kOp),
                                     has_bias ? biases.Load(kOp) : nullptr, has_mask ? masks.Load(kOp) : nullptr};
      Run<float>(s, operands, taken, packed, y.values());
      y.Store(kOp);
    });
  }

 private:
  template <class C>
  struct Operands {
    const C *x, *w, *offsets, *bias, *mask;  // the last two may be null
  };
  template <class C>
  static void Run(const DeformableSizes& s, const Operands<C>& from, C* taken, void* packed, C* y) {
    const int64_t positions = s.positions(), planes = s.sets * s.taps();  // of a mask; of offsets, two for each
    for (int64_t n = 0; n < s.batch; ++n) {
      ParallelFor(s.channels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          const auto offsets_of = [&](int64_t tap) -> convolution::TapOffsets<C> {
            const int64_t plane = n * planes + s.SetOf(c) * s.taps() + tap;
            const C* of_tap = from.offsets + plane * 2 * positions;
            return {of_tap, of_tap + positions, from.mask == nullptr ? nullptr : from.mask + plane * positions};
          };
          convolution::SamplePlane(from.x + (n * s.channels + c) * s.rows * s.columns, s, offsets_of,
                                   taken + c * s.taps() * positions);
        }
      });
      convolution::MultiplySamples(s, taken, from.w, from.bias, packed, y + n * s.channels_out * positions);
    }
  }

  DeformableSizes Check(const TensorView& x, const TensorView& w, const TensorView& offset, const TensorView& bias,
                        const TensorView& mask) const {
    convolution::CheckOperands(kOp, x, w, bias);
    NPU_OP_CHECK(kOp, x.shape.rank() == 4, "expected images [N, C, H, W], got X of shape ", x.shape);
    const int64_t channels = x.shape[1];
    NPU_OP_CHECK(kOp, channels % groups_ == 0 && w.shape[1] == channels / groups_ && w.shape[0] % groups_ == 0,
                 "expected W [M, C / group, kernel] for C = ", channels, " and group = ", groups_,
                 ", which also divides M, got shape ", w.shape);
    NPU_OP_CHECK(kOp, channels % sets_ == 0, "expected an offset_group that divides the ", channels, " channels, got ",
                 sets_);
    convolution::CheckBias(kOp, bias, w.shape[0]);
    const std::vector<Axis> axes = convolution::AxesOf(kOp, attributes_, x.shape, w.shape);
    const Axis &down = axes[0], &across = axes[1];
    const int64_t planes = Shape{sets_, down.kernel, across.kernel}.Elements();
    CheckPlanes("offset", offset, x, {x.shape[0], 2 * planes, down.out, across.out});
    if (mask) CheckPlanes("mask", mask, x, {x.shape[0], planes, down.out, across.out});
    return {x.shape[0],    channels,      x.shape[2],      x.shape[3],  w.shape[0],    down.out,
            across.out,    down.kernel,   across.kernel,   down.stride, across.stride, down.before,
            across.before, down.dilation, across.dilation, groups_,     sets_};
  }

  static void CheckPlanes(const char* name, const TensorView& view, const TensorView& x, const Shape& expected) {
    NPU_OP_CHECK(kOp, view.shape == expected && view.dtype == x.dtype, "expected ", name, " of shape ", expected,
                 " and X's type, got ", view.shape, " and ", NameOf(view.dtype));
  }

  Attributes attributes_;
  int64_t groups_, sets_;
};

std::string WhyNot(const NodeView& node) {
  const bool images = !node.rank_known[0] || node.shapes[0].size() == 4;
  return images ? "" : "DeformConv of other inputs than images is not implemented";
}

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 19,
    .until = 22,
    .inputs = {Input("X", kAllFloats), Input("W", kAllFloats), Input("offset", kAllFloats),
               OptionalInput("B", kAllFloats), OptionalInput("mask", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = convolution::ConvolutionAttributes({IntAttribute("offset_group", 1)}),
    .make = MakeKernel<DeformConvKernel>,
    .unsupported = WhyNot,
});

}  // namespace
}  // namespace npu
