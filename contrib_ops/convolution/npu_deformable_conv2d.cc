// npu_deformable_conv2d(input, weight, offset, bias; kernel_size, stride, padding, dilation, groups, deformable_groups,
// modulated) -> y, deformable_offsets. The semantics are in npu_deformable_conv2d.py.
#include "contrib_ops/convolution/npu_deformable_conv2d.h"

#include <cmath>
#include <limits>

#include "ep/kernels/float_values.h"
#include "ep/kernels/gemm/packed_weight.h"

namespace npu {
namespace {

using In = nodes::NPUDeformableConv2d::In;
using Out = nodes::NPUDeformableConv2d::Out;

constexpr const char* kOp = "npu_deformable_conv2d";

struct Sizes {
  int64_t batch, channels, rows, columns;                                 // of the input
  int64_t channels_out, height, width;                                    // of the result
  int64_t kh, kw, step_y, step_x, top, left, gap_y, gap_x, groups, sets;  // sets: of offsets

  int64_t taps() const { return kh * kw; }
  int64_t positions() const { return height * width; }
  int64_t depth() const { return channels / groups * taps(); }  // products of a result
};

// The bilinear value of a plane; pixels outside count 0.
float Bilinear(const float* plane, const Sizes& s, double y, double x) {
  if (!(y > -1 && y < static_cast<double>(s.rows) && x > -1 && x < static_cast<double>(s.columns)))
    return y == y && x == x ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  const double low_y = std::floor(y), low_x = std::floor(x), part_y = y - low_y, part_x = x - low_x;
  const auto row = static_cast<int64_t>(low_y), column = static_cast<int64_t>(low_x);
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      if (row + i < 0 || row + i >= s.rows || column + j < 0 || column + j >= s.columns) continue;
      sum +=
          plane[(row + i) * s.columns + column + j] * ((i == 1 ? part_y : 1 - part_y) * (j == 1 ? part_x : 1 - part_x));
    }
  }
  return static_cast<float>(sum);
}

// The samples of channel `c` of an image: into `taken` [taps, positions] and, where they lie side by side, `spread`.
void SampleChannel(const float* plane, const float* offsets, int64_t c, const Sizes& s, float* taken, float* spread) {
  const int64_t set = c / (s.channels / s.sets), planes = s.sets * s.taps(), positions = s.positions();
  for (int64_t tap = 0; tap < s.taps(); ++tap) {
    const int64_t i = tap / s.kw, j = tap % s.kw;
    const float* dx = offsets + (set * s.taps() + tap) * positions;
    const float *dy = dx + planes * positions, *mask = dy + planes * positions;
    for (int64_t at = 0; at < positions; ++at) {
      const int64_t oh = at / s.width, ow = at % s.width;
      const double y = static_cast<double>(oh * s.step_y - s.top + i * s.gap_y) + dy[at];
      const double x = static_cast<double>(ow * s.step_x - s.left + j * s.gap_x) + dx[at];
      const float value = mask[at] * Bilinear(plane, s, y, x);
      taken[tap * positions + at] = value;
      spread[(oh * s.kh + i) * s.width * s.kw + ow * s.kw + j] = value;
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
    const Sizes s = Check(x, w, offset, bias);
    const FloatResults y(ctx, ctx.Output(Out::y, x.dtype, {s.batch, s.channels_out, s.height, s.width}));
    const Shape spread_shape{s.batch, s.channels, s.height * s.kh, s.width * s.kw};
    TensorView spread = ctx.Output(Out::deformable_offsets, DType::kFloat32, spread_shape);
    if (y.elements() == 0 && spread_shape.Elements() == 0) return;
    if (!spread) spread.data = Floats(ctx, spread_shape);
    float* taken = Floats(ctx, {s.channels, s.taps(), s.height, s.width});
    const size_t panels = s.depth() == 0 ? 0 : gemm::PackedBytes(DType::kFloat32, s.depth(), s.positions());
    char* packed = panels == 0 ? nullptr : static_cast<char*>(ctx.Workspace(panels));
    const FloatValues inputs(ctx, x), weights(ctx, w), offsets(ctx, offset);
    const FloatValues biases(ctx, bias ? bias : w);
    ctx.Launch(kOp, [=, has_bias = bias.present] {
      if (s.batch == 0) return;
      const float* from = x.elements() == 0 ? nullptr : inputs.Load(kOp);
      const float* filters = w.elements() == 0 ? nullptr : weights.Load(kOp);
      const float *moves = offsets.Load(kOp), *added = has_bias ? biases.Load(kOp) : nullptr;
      for (int64_t n = 0; n < s.batch; ++n) {
        const float* of_image = moves + n * 3 * s.sets * s.taps() * s.positions();
        ParallelFor(s.channels, 1, [&](int64_t begin, int64_t end) {
          for (int64_t c = begin; c < end; ++c) {
            const int64_t plane = n * s.channels + c, size = s.taps() * s.positions();
            SampleChannel(from + plane * s.rows * s.columns, of_image, c, s, taken + c * size,
                          static_cast<float*>(spread.data) + plane * size);
          }
        });
        Multiply(s, taken, filters, packed, y.values() + n * s.channels_out * s.positions());
        if (added != nullptr) AddBias(s, added, y.values() + n * s.channels_out * s.positions());
      }
      y.Store(kOp);
    });
  }

 private:
  static float* Floats(OpContext& ctx, const Shape& shape) {
    return static_cast<float*>(ctx.Workspace(std::max<size_t>(BytesFor(DType::kFloat32, shape.Elements()), 1)));
  }

  static void Multiply(const Sizes& s, const float* taken, const float* filters, char* packed, float* y) {
    const int64_t rows = s.channels_out / s.groups, depth = s.depth(), positions = s.positions();
    if (rows == 0) return;
    for (int64_t g = 0; g < s.groups; ++g) {
      float* to = y + g * rows * positions;
      if (depth == 0) {
        std::fill_n(to, rows * positions, 0.0f);
        continue;
      }
      gemm::Pack(DType::kFloat32, gemm::Matrix::RowMajor(taken + g * depth * positions, depth, positions), packed,
                 DType::kFloat32);
      gemm::Multiply(gemm::Matrix::RowMajor(filters + g * rows * depth, rows, depth),
                     gemm::PackedMatrix{packed, DType::kFloat32, DType::kFloat32, depth, positions},
                     {to, DType::kFloat32, positions});
    }
  }

  static void AddBias(const Sizes& s, const float* bias, float* y) {
    for (int64_t m = 0; m < s.channels_out; ++m)
      for (int64_t i = 0; i < s.positions(); ++i) y[m * s.positions() + i] += bias[m];
  }

  static void CheckNumbers(const char* name, const std::vector<int64_t>& numbers, size_t length, int64_t least) {
    bool fits = numbers.size() == length;
    for (const int64_t n : numbers) fits &= n >= least && n <= std::numeric_limits<int32_t>::max();
    NPU_CHECK(fits, "[", kOp, "] expected ", name, " of ", length, " int32 numbers >= ", least, ", got ",
              Shape(numbers));
  }

  Sizes Check(const TensorView& x, const TensorView& w, const TensorView& offset, const TensorView& bias) const {
    const auto check_rank = [](const char* name, const TensorView& view) {
      NPU_CHECK(view && view.shape.rank() == 4, "[", kOp, "] expected ", name, " of rank 4, got ", view.shape);
    };
    check_rank("input", x);
    check_rank("weight", w);
    check_rank("offset", offset);
    CheckNumbers("kernel_size", kernel_, 2, 1);
    CheckNumbers("stride", stride_, 4, 1);
    CheckNumbers("padding", padding_, 4, 0);
    CheckNumbers("dilation", dilation_, 4, 1);
    NPU_CHECK(modulated_, "[", kOp, "] expected modulated True, got False");
    const int64_t channels = x.shape[1], kh = kernel_[0], kw = kernel_[1];
    NPU_CHECK(groups_ > 0 && channels % groups_ == 0, "[", kOp, "] expected groups to divide the ", channels,
              " channels, got ", groups_);
    NPU_CHECK(sets_ > 0 && channels % sets_ == 0, "[", kOp, "] expected deformable_groups to divide the ", channels,
              " channels, got ", sets_);
    NPU_CHECK(w.shape[1] == channels / groups_ && w.shape[2] == kh && w.shape[3] == kw && w.shape[0] % groups_ == 0,
              "[", kOp, "] expected weight [Co, ", channels / groups_, ", ", kh, ", ", kw,
              "] with Co a multiple of groups ", groups_, ", got ", w.shape);
    const int64_t height = ResultSize(x.shape[2] + padding_[0] + padding_[1], kh, dilation_[2], stride_[2]);
    const int64_t width = ResultSize(x.shape[3] + padding_[2] + padding_[3], kw, dilation_[3], stride_[3]);
    NPU_CHECK(height > 0 && width > 0, "[", kOp, "] expected a kernel that fits the padded input, got a result of ",
              height, " by ", width);
    const Shape expected{x.shape[0], 3 * sets_ * kh * kw, height, width};
    NPU_CHECK(offset.shape == expected, "[", kOp, "] expected offset of shape ", expected, ", got ", offset.shape);
    NPU_CHECK(!bias || bias.shape == Shape{w.shape[0]}, "[", kOp, "] expected bias of shape ", Shape{w.shape[0]},
              ", got ", bias.shape);
    const auto check_dtype = [&x](const char* name, const TensorView& view) {
      NPU_CHECK(!view || view.dtype == x.dtype, "[", kOp, "] expected ", name, " of the dtype of input, ",
                NameOf(x.dtype), ", got ", NameOf(view.dtype));
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
