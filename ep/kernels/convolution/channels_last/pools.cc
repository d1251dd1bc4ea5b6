// MaxPool of two dimensions and GlobalAveragePool with channels last, in float32: loops over channels vectorise.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/channels_last/layout.h"
#include "ep/kernels/float_vector.h"
#include "ep/kernels/gemm/vector.h"
#include "ep/kernels/pooling/definition.h"

namespace npu {
namespace {

using pooling::Axis;
using pooling::Window;

class ChannelsLastMaxPool final : public Kernel {
 public:
  explicit ChannelsLastMaxPool(const KernelInfo& info) : sliding_("MaxPool", info.attributes), layout_(info) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const std::vector<Axis> axes = sliding_.AxesOf(x.shape);
    const TensorView y = ctx.Output(0, x.dtype, pooling::OutputShape(x.shape, axes));
    if (y.elements() == 0) return;
    layout_.WithStored([&](auto type) { Run<decltype(type)>(ctx, x, axes, y); });
  }

 private:
  template <class T>
  void Run(OpContext& ctx, const TensorView& x, const std::vector<Axis>& axes, const TensorView& y) const {
    const T* pixels = channels_last::ReadChannelsLast<T>(ctx, "MaxPool", x, layout_.Of(0));
    T* results = channels_last::ResultsOf<T>(ctx, y, layout_.output);
    ctx.Launch("MaxPool", [=, v = axes[0], h = axes[1]] {
      // A window may be far larger than the image.
      const int64_t channels = x.shape[1], taps = std::min(v.kernel, v.in) * std::min(h.kernel, h.in);
      ParallelFor(x.shape[0] * v.out, RowGrain(h.out * taps * channels), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* image = pixels + row / v.out * v.in * h.in * channels;
          Row(v.At(row % v.out), v.dilation, h, image, channels, results + row * h.out * channels);
        }
      });
    });
    channels_last::LaunchOrder(ctx, "MaxPool", results, y);
  }

  // The outputs of a line. As in any pool, what is no number is the greatest.
  template <class T>
  static void Row(const Window& rows, int64_t row_step, const Axis& h, const T* image, int64_t channels, T* to) {
    for (int64_t o = 0; o < h.out; ++o, to += channels) {
      const Window columns = h.At(o);
      int64_t i = 0;
      for (; i + simd::kLanes <= channels; i += simd::kLanes) {
        simd::Vec most = simd::Broadcast(-std::numeric_limits<float>::infinity());
        for (int64_t r = rows.begin; r < rows.end; r += row_step) {
          for (int64_t c = columns.begin; c < columns.end; c += h.dilation) {
            const simd::Vec value = simd::LoadFloats(image + (r * h.in + c) * channels + i);
            most = (value > most) | (value != value) ? value : most;
          }
        }
        simd::StoreRounded(most, to + i);  // one of the values that T has
      }
      for (; i < channels; ++i) {
        float most = -std::numeric_limits<float>::infinity();
        for (int64_t r = rows.begin; r < rows.end; r += row_step) {
          for (int64_t c = columns.begin; c < columns.end; c += h.dilation) {
            const float value = ToFloat(image[(r * h.in + c) * channels + i]);
            most = value > most || value != value ? value : most;
          }
        }
        to[i] = FromFloat<T>(most);
      }
    }
  }

  pooling::Sliding sliding_;
  channels_last::Layout layout_;
};

class ChannelsLastAverage final : public Kernel {
 public:
  explicit ChannelsLastAverage(const KernelInfo& info) : layout_(info) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const std::vector<Axis> axes = pooling::GlobalAxes("GlobalAveragePool", x.shape);
    const TensorView y = ctx.Output(0, x.dtype, pooling::OutputShape(x.shape, axes));
    if (y.elements() == 0) return;
    layout_.WithStored([&](auto type) { Run<decltype(type)>(ctx, x, y); });
  }

 private:
  static constexpr int64_t kTogether = 4 * gemm::kPanelColumns;  // channels that one thread averages

  template <class T>
  void Run(OpContext& ctx, const TensorView& x, const TensorView& y) const {
    const T* values = channels_last::ReadChannelsLast<T>(ctx, "GlobalAveragePool", x, layout_.Of(0));
    ctx.Launch("GlobalAveragePool", [x, y, values] {
      const int64_t channels = x.shape[1], pixels = x.shape.Elements(2, x.shape.rank());
      const int64_t parts = (channels + kTogether - 1) / kTogether;
      ParallelFor(x.shape[0] * parts, std::max<int64_t>(1, kCheapGrain / (pixels * kTogether)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t unit = begin; unit < end; ++unit) {
                      const int64_t image = unit / parts, first = unit % parts * kTogether;
                      Average(values + image * pixels * channels + first, pixels, channels,
                              std::min(kTogether, channels - first), y.as<float>() + image * channels + first);
                    }
                  });
    });
  }

  // Sums of a few rows of pixels are added up: one running sum of all would lose more to rounding.
  template <class T>
  static void Average(const T* x, int64_t pixels, int64_t pitch, int64_t channels, float* to) {
    constexpr int64_t kRun = 64;
    float sums[kTogether] = {}, run[kTogether];
    for (int64_t p = 0; p < pixels; p += kRun) {
      std::fill(run, run + kTogether, 0.0f);
      for (int64_t q = p; q < std::min(pixels, p + kRun); ++q) {
        const T* in = x + q * pitch;
#pragma omp simd
        for (int64_t i = 0; i < channels; ++i) run[i] += ToFloat(in[i]);
      }
      for (int64_t i = 0; i < channels; ++i) sums[i] += run[i];
    }
    for (int64_t i = 0; i < channels; ++i) to[i] = sums[i] / static_cast<float>(pixels);
  }

  channels_last::Layout layout_;
};

std::string WhyUnsupported(const NodeView& node) {
  return node.attributes.Ints("kernel_shape").size() == 2 ? "" : "not of two dimensions";
}

NPU_ONNX_KERNEL({
    .domain = "npu.channels_last",
    .type = "MaxPool",
    .inputs = {Input("X", channels_last::kFloat32)},
    .outputs = {Output("Y", channels_last::kFloat32)},
    .attributes = channels_last::LayoutAttributes(
        {0}, true, pooling::SlidingAttributes({IntsAttribute("dilations"), IntAttribute("storage_order", 0)})),
    .make = MakeKernel<ChannelsLastMaxPool>,
    .unsupported = WhyUnsupported,
});
NPU_ONNX_KERNEL({
    .domain = "npu.channels_last",
    .type = "GlobalAveragePool",
    .inputs = {Input("X", channels_last::kFloat32)},
    .outputs = {Output("Y", channels_last::kFloat32)},
    .attributes = channels_last::LayoutAttributes({0}, false),
    .make = MakeKernel<ChannelsLastAverage>,
});

}  // namespace
}  // namespace npu
