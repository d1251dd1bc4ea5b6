// torch's interpolation of the last axes and its gradient, with torch's position arithmetic: in float, or double for
// images of double.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/mapped_copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/resample/taps.h"

namespace npu {
namespace {

using resample::AxisTaps;
using resample::Filter;
using resample::Taps;

enum class Mode { kNearest, kNearestExact, kLinear, kCubic, kLanczos };

Mode ModeOf(const std::string& name) {
  const std::pair<const char*, Mode> modes[] = {{"nearest", Mode::kNearest},
                                                {"nearest-exact", Mode::kNearestExact},
                                                {"linear", Mode::kLinear},
                                                {"cubic", Mode::kCubic},
                                                {"lanczos", Mode::kLanczos}};
  const auto* mode = std::find_if(std::begin(modes), std::end(modes), [&](const auto& m) { return name == m.first; });
  NPU_CHECK(mode != std::end(modes), "[Upsample] expected mode nearest, nearest-exact, linear, cubic or lanczos, got ",
            name);
  return mode->second;
}

// The images' sizes along one axis; scale 0: the ratio of the sizes.
struct Axis {
  int64_t in, out;
  double scale;

  template <class R>
  R Step(bool align_corners) const {
    if (align_corners) return out > 1 ? static_cast<R>(in - 1) / static_cast<R>(out - 1) : R{0};
    return scale > 0 ? static_cast<R>(1 / scale) : static_cast<R>(in) / static_cast<R>(out);
  }
};

AxisMap NearestMap(bool exact, const Axis& axis) {
  AxisMap map;
  const float step = axis.Step<float>(false);
  for (int64_t o = 0; o < axis.out; ++o) {
    const float position = (static_cast<float>(o) + (exact ? 0.5f : 0.0f)) * step;
    const float below = std::fmin(std::floor(position), static_cast<float>(axis.in - 1));
    const bool twice = axis.out % 2 == 0 && axis.out / 2 == axis.in;
    if (!exact && (axis.out == axis.in || twice)) {  // computed without rounding
      map.push_back(twice ? o / 2 : o);
    } else {
      map.push_back(std::min(static_cast<int64_t>(below), axis.in - 1));
    }
  }
  return map;
}

template <class R>
Taps FilteredTaps(const Filter& filter, const Axis& axis, bool align_corners) {
  Taps taps(axis.in);
  const R step = axis.Step<R>(align_corners);
  for (int64_t o = 0; o < axis.out; ++o) {
    R position = align_corners ? step * static_cast<R>(o) : step * (static_cast<R>(o) + R(0.5)) - R(0.5);
    if (filter.kind == Filter::Kind::kLinear) position = std::max(position, R{0});
    taps.Add(static_cast<double>(position), filter, 1, false);
  }
  return taps;
}

// Where an axis shrinks, the filter is as wide as an output element, and its weights sum to one.
template <class R>
Taps AntialiasedTaps(const Filter& filter, const Axis& axis, bool align_corners) {
  Taps taps(axis.in);
  const R step = axis.Step<R>(align_corners);
  for (int64_t o = 0; o < axis.out; ++o) {
    const R position = step * (static_cast<R>(o) + R(0.5)) - R(0.5);
    taps.Add(static_cast<double>(position), filter, std::max(static_cast<double>(step), 1.0), true);
  }
  return taps;
}

Filter FilterOf(Mode mode, bool antialias) {
  if (mode == Mode::kLanczos) return {Filter::Kind::kLanczos};
  if (mode == Mode::kCubic) return {Filter::Kind::kCubic, antialias ? -0.5 : -0.75};  // torch has two cubics
  return {Filter::Kind::kLinear};
}

class Upsampling {
 public:
  explicit Upsampling(const KernelInfo& info)
      : mode_(ModeOf(info.attributes.String("mode"))),
        align_corners_(info.attributes.Bool("align_corners")),
        antialias_(info.attributes.Bool("antialias")),
        scales_(info.attributes.Floats("scales")),
        filter_(FilterOf(mode_, antialias_)) {
    NPU_CHECK(antialias_ ? !copies() : mode_ != Mode::kLanczos, "[Upsample] expected antialias with mode lanczos, and ",
              "not with modes nearest and nearest-exact");
  }

  bool copies() const { return mode_ == Mode::kNearest || mode_ == Mode::kNearestExact; }

  // `other`'s shape with the last dimensions from `sizes`.
  Shape ShapeOf(const char* op, const Shape& other, const std::vector<int64_t>& sizes) const {
    const int rank = other.rank(), first = rank - static_cast<int>(sizes.size());
    NPU_OP_CHECK(op, sizes.size() <= static_cast<size_t>(rank), "expected sizes of at most ", rank, " axes, got ",
                 sizes.size());
    NPU_OP_CHECK(op, scales_.empty() || scales_.size() == sizes.size(), "expected a scale for each of ", sizes.size(),
                 " axes, got ", scales_.size());
    Shape shape = other;
    for (int d = first; d < rank; ++d) {
      shape[d] = sizes[static_cast<size_t>(d - first)];
      NPU_OP_CHECK(op, shape[d] > 0 && other[d] > 0, "expected axes with elements, got ", other, " and size ", shape[d],
                   " of axis ", d);
    }
    return shape;
  }

  Axis AxisOf(const Shape& in, const Shape& out, int d, size_t count) const {
    const size_t i = static_cast<size_t>(d) + count - static_cast<size_t>(in.rank());
    return {in[d], out[d], scales_.empty() ? 0 : scales_[i]};
  }

  std::vector<AxisMap> Maps(const Shape& in, const Shape& out, size_t count) const {
    std::vector<AxisMap> maps;
    for (int d = 0; d < in.rank(); ++d) {
      const bool resized = static_cast<size_t>(in.rank() - d) <= count;
      maps.push_back(NearestMap(mode_ == Mode::kNearestExact && resized,
                                resized ? AxisOf(in, out, d, count) : Axis{in[d], in[d], 0}));
    }
    return maps;
  }

  std::vector<AxisTaps> TapsOf(DType dtype, const Shape& in, const Shape& out, size_t count) const {
    std::vector<AxisTaps> axes;
    for (int d = in.rank() - static_cast<int>(count); d < in.rank(); ++d) {
      const Axis axis = AxisOf(in, out, d, count);
      if (copies()) {
        axes.push_back({d, Taps(axis.in, NearestMap(mode_ == Mode::kNearestExact, axis))});
      } else if (mode_ != Mode::kLinear || axis.in != axis.out || antialias_) {  // else it is the identity
        const bool wide = dtype == DType::kFloat64;
        const auto make = antialias_ ? (wide ? &AntialiasedTaps<double> : &AntialiasedTaps<float>)
                                     : (wide ? &FilteredTaps<double> : &FilteredTaps<float>);
        axes.push_back({d, make(filter_, axis, align_corners_)});
      }
    }
    return axes;
  }

 private:
  Mode mode_;
  bool align_corners_, antialias_;
  std::vector<double> scales_;
  Filter filter_;
};

class UpsampleKernel final : public Kernel {
 public:
  explicit UpsampleKernel(const KernelInfo& info) : upsampling_(info) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const std::vector<int64_t> sizes = ReadHostInts("Upsample", "sizes", ctx.Input(1));
    const TensorView y = ctx.Output(0, x.dtype, upsampling_.ShapeOf("Upsample", x.shape, sizes));
    if (y.elements() == 0) return;
    if (upsampling_.copies()) {
      LaunchMappedCopy(ctx, "Upsample", x, y, upsampling_.Maps(x.shape, y.shape, sizes.size()), nullptr);
    } else {
      LaunchTaps(ctx, "Upsample", x, y, upsampling_.TapsOf(x.dtype, x.shape, y.shape, sizes.size()));
    }
  }

 private:
  Upsampling upsampling_;
};

class UpsampleGradKernel final : public Kernel {
 public:
  explicit UpsampleGradKernel(const KernelInfo& info) : upsampling_(info) {}
  void Compute(OpContext& ctx) const override {
    const TensorView dy = ctx.Input(0);
    const std::vector<int64_t> sizes = ReadHostInts("UpsampleGrad", "sizes", ctx.Input(1));
    const TensorView dx = ctx.Output(0, dy.dtype, upsampling_.ShapeOf("UpsampleGrad", dy.shape, sizes));
    if (dx.elements() == 0) return;
    std::vector<AxisTaps> axes = upsampling_.TapsOf(dy.dtype, dx.shape, dy.shape, sizes.size());
    for (AxisTaps& axis : axes) axis.taps = axis.taps.Transposed();
    LaunchTaps(ctx, "UpsampleGrad", dy, dx, std::move(axes));
  }

 private:
  Upsampling upsampling_;
};

// `sizes`: the result's last axes.
OpDef Definition(const char* type, const char* from, const char* to, DTypeSet dtypes, KernelFactory make) {
  return {
      .domain = "npu.aten",
      .type = type,
      .inputs = {Input(from, dtypes), HostInput("sizes", kInt64)},
      .outputs = {Output(to, dtypes)},
      .attributes = {StringAttribute("mode", "nearest"), IntAttribute("align_corners", 0), IntAttribute("antialias", 0),
                     FloatsAttribute("scales")},
      .make = std::move(make),
  };
}

NPU_ONNX_KERNEL(Definition("Upsample", "X", "Y", kNumeric, MakeKernel<UpsampleKernel>));
NPU_ONNX_KERNEL(Definition("UpsampleGrad", "dY", "dX", kAllFloats, MakeKernel<UpsampleGradKernel>));

}  // namespace
}  // namespace npu
