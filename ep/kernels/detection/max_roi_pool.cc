// MaxRoiPool (ai.onnx 1 to 22): the regions of a feature map are divided into bins of whole pixels, which may overlap,
// and each bin becomes the greatest of its pixels, 0 if it has none.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ep/kernels/detection/pooled_size.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "MaxRoiPool";
constexpr int64_t kGrain = 16;  // planes of a region that are worth another thread

// The whole pixels of a region along one axis; both ends are inside.
struct Side {
  int64_t start, length;

  template <class C>
  static Side Between(C low, C high, double scale) {
    const int64_t start = Nearest(low, scale), end = Nearest(high, scale);
    return {start, std::max<int64_t>(end - start + 1, 1)};
  }

  // The pixels of bin `i` of `bins` that the plane has.
  std::pair<int64_t, int64_t> Bin(int64_t i, int64_t bins, int64_t extent) const {
    const int64_t begin = start + i * length / bins, end = start + ((i + 1) * length + bins - 1) / bins;
    return {std::clamp<int64_t>(begin, 0, extent), std::clamp<int64_t>(end, 0, extent)};
  }

 private:
  // Bounded, so that no product overflows; NaN counts 0.
  template <class C>
  static int64_t Nearest(C coordinate, double scale) {
    constexpr double kMost = 1 << 30;
    const double pixel = std::round(static_cast<double>(coordinate) * scale);
    return pixel == pixel ? static_cast<int64_t>(std::clamp(pixel, -kMost, kMost)) : 0;
  }
};

template <class T>
struct RegionPool {
  using C = ComputeType<T>;
  const T* x;
  const T* rois;  // [regions, 5]: the image and two corners
  T* y;
  int64_t images, channels, height, width, regions, bins_high, bins_wide;
  double scale;

  void Run() const {
    ParallelFor(regions * channels, kGrain, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* roi = rois + i / channels * 5;
        const int64_t image = detection::CheckedImage(kOp, Upcast(roi[0]), images);
        Pool(x + (image * channels + i % channels) * height * width,
             Side::Between(Upcast(roi[2]), Upcast(roi[4]), scale), Side::Between(Upcast(roi[1]), Upcast(roi[3]), scale),
             y + i * bins_high * bins_wide);
      }
    });
  }

 private:
  void Pool(const T* plane, const Side& rows, const Side& columns, T* to) const {
    for (int64_t i = 0; i < bins_high; ++i) {
      const auto [top, bottom] = rows.Bin(i, bins_high, height);
      for (int64_t j = 0; j < bins_wide; ++j) {
        const auto [left, right] = columns.Bin(j, bins_wide, width);
        C best = top < bottom && left < right ? Upcast(plane[top * width + left]) : C{0};
        for (int64_t row = top; row < bottom; ++row)
          for (int64_t column = left; column < right; ++column)
            best = std::max(best, Upcast(plane[row * width + column]));
        *to++ = Rounded<T>(best);
      }
    }
  }
};

class MaxRoiPoolKernel final : public Kernel {
 public:
  explicit MaxRoiPoolKernel(const KernelInfo& info) : scale_(info.attributes.Float("spatial_scale")) {
    const std::vector<int64_t> shape = info.attributes.Ints("pooled_shape");
    NPU_OP_CHECK(kOp, shape.size() == 2, "expected pooled_shape of 2 sizes, got ", shape.size());
    for (const int64_t size : shape) detection::PooledSize(kOp, "pooled_shape", size);
    high_ = shape[0];
    wide_ = shape[1];
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), rois = ctx.Input(1);
    const Shape &s = x.shape, &r = rois.shape;
    NPU_OP_CHECK(kOp, s.rank() == 4, "expected X [N, C, H, W], got shape ", s);
    NPU_OP_CHECK(kOp, r.rank() == 2 && r[1] == 5 && rois.dtype == x.dtype, "expected rois [regions, 5] of ",
                 NameOf(x.dtype), ", got ", NameOf(rois.dtype), " ", r);
    const TensorView y = ctx.Output(0, x.dtype, {r[0], s[1], high_, wide_});
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const RegionPool<T> task{
          x.as<const T>(), rois.as<const T>(), y.as<T>(), s[0], s[1], s[2], s[3], r[0], high_, wide_, scale_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  int64_t high_, wide_;
  double scale_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 1,
    .until = 22,
    .inputs = {Input("X", kAllFloats), Input("rois", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {{.name = "pooled_shape", .kind = AttrDef::Kind::kInts, .required = true},
                   FloatAttribute("spatial_scale", 1.0)},
    .make = MakeKernel<MaxRoiPoolKernel>,
});

}  // namespace
}  // namespace npu
