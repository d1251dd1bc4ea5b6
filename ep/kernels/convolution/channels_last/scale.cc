// Mul of a value with channels last, [N, C, H, W], and one factor per channel and image, [N, C, 1, 1]: the end of a
// squeeze-and-excitation.
#include <algorithm>
#include <string>
#include <vector>

#include "ep/kernels/convolution/channels_last/layout.h"
#include "ep/kernels/float_vector.h"

namespace npu {
namespace {

class ChannelsLastScale final : public Kernel {
 public:
  explicit ChannelsLastScale(const KernelInfo& info) : layout_(info) {}

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), b = ctx.Input(1);
    // What is channels last is the value, of one position, too.
    const size_t value = !layout_.Of(1) && (layout_.Of(0) || IsFactor(b.shape)) ? 0 : 1;
    const TensorView &x = value == 0 ? a : b, &by = value == 0 ? b : a;
    NPU_CHECK(x.shape.rank() == 4 && IsFactor(by.shape) && by.shape[1] == x.shape[1] &&
                  (by.shape[0] == x.shape[0] || by.shape[0] == 1 || x.shape[0] == 1),
              "[Mul] expected factors of shape [N, C, 1, 1] for a value [N, C, H, W], got shapes ", by.shape, " and ",
              x.shape);
    const int64_t images = by.shape[0] == 1 ? x.shape[0] : by.shape[0];
    const TensorView y = ctx.Output(0, x.dtype, Shape{images, x.shape[1], x.shape[2], x.shape[3]});
    if (y.elements() == 0) return;
    layout_.WithStored([&](auto type) {
      using T = decltype(type);
      const T* pixels = channels_last::ReadChannelsLast<T>(ctx, "Mul", x, layout_.Of(static_cast<int64_t>(value)));
      if (layout_.output) return Launch(ctx, x, by, pixels, images, y.as<T>());
      // What the next operator does not read as T is not rounded.
      float* results = channels_last::ResultsOf<float>(ctx, y, false);
      Launch(ctx, x, by, pixels, images, results);
      channels_last::LaunchOrder(ctx, "Mul", results, y);
    });
  }

 private:
  template <class T, class Y>
  static void Launch(OpContext& ctx, const TensorView& x, const TensorView& by, const T* pixels, int64_t images,
                     Y* results) {
    ctx.Launch("Mul", [=] {
      const int64_t channels = x.shape[1], count = x.shape[2] * x.shape[3];
      ParallelFor(images * count, std::max<int64_t>(1, kCheapGrain / channels), [&](int64_t begin, int64_t end) {
        for (int64_t pixel = begin; pixel < end; ++pixel) {
          const T* in = pixels + (x.shape[0] == 1 ? pixel % count : pixel) * channels;
          const float* factor = by.as<const float>() + (by.shape[0] == 1 ? 0 : pixel / count) * channels;
          Scale(in, factor, channels, results + pixel * channels);
        }
      });
    });
  }

  template <class T, class Y>
  static void Scale(const T* in, const float* factor, int64_t channels, Y* to) {
    int64_t i = 0;
    for (; i + simd::kLanes <= channels; i += simd::kLanes)
      simd::StoreRounded(simd::Rounded<Y>(simd::LoadFloats(in + i) * simd::Load(factor + i)), to + i);
    for (; i < channels; ++i) to[i] = FromFloat<Y>(ToFloat(in[i]) * factor[i]);
  }

  static bool IsFactor(const Shape& shape) { return shape.rank() == 4 && shape[2] == 1 && shape[3] == 1; }

  channels_last::Layout layout_;
};

std::string WhyUnsupported(const NodeView& node) {
  const std::vector<int64_t>&a = node.shapes[0], &b = node.shapes[1];
  const bool known = node.rank_known[0] && node.rank_known[1] && a.size() == 4 && b.size() == 4;
  const auto is_factor = [](const std::vector<int64_t>& shape) { return shape[2] == 1 && shape[3] == 1; };
  if (!known || (!is_factor(a) && !is_factor(b)) || a[1] < 1 || a[1] != b[1])
    return "not a value and a factor per channel";
  return "";
}

NPU_ONNX_KERNEL({
    .domain = "npu.channels_last",
    .type = "Mul",
    .inputs = {Input("A", channels_last::kFloat32), Input("B", channels_last::kFloat32)},
    .outputs = {Output("C", channels_last::kFloat32)},
    .attributes = channels_last::LayoutAttributes({0, 1}, true),
    .make = MakeKernel<ChannelsLastScale>,
    .unsupported = WhyUnsupported,
});

}  // namespace
}  // namespace npu
