// Resize (ai.onnx 11 to 19).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/mapped_copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/resample/taps.h"

namespace npu {
namespace {

using resample::AxisTaps;
using resample::Filter;
using resample::Taps;

enum class Mode { kNearest, kLinear, kCubic };
enum class Transformation {
  kHalfPixel,
  kHalfPixelSymmetric,
  kPytorchHalfPixel,
  kAlignCorners,
  kAsymmetric,
  kCropAndResize
};
enum class Rounding { kPreferFloor, kPreferCeil, kFloor, kCeil };
enum class Policy { kStretch, kNotLarger, kNotSmaller };

template <class E>
using Names = std::vector<std::pair<const char*, E>>;
const Names<Mode> kModes = {{"nearest", Mode::kNearest}, {"linear", Mode::kLinear}, {"cubic", Mode::kCubic}};
const Names<Transformation> kTransformations = {{"half_pixel", Transformation::kHalfPixel},
                                                {"half_pixel_symmetric", Transformation::kHalfPixelSymmetric},
                                                {"pytorch_half_pixel", Transformation::kPytorchHalfPixel},
                                                {"align_corners", Transformation::kAlignCorners},
                                                {"asymmetric", Transformation::kAsymmetric},
                                                {"tf_crop_and_resize", Transformation::kCropAndResize}};
const Names<Rounding> kRoundings = {{"round_prefer_floor", Rounding::kPreferFloor},
                                    {"round_prefer_ceil", Rounding::kPreferCeil},
                                    {"floor", Rounding::kFloor},
                                    {"ceil", Rounding::kCeil}};
const Names<Policy> kPolicies = {
    {"stretch", Policy::kStretch}, {"not_larger", Policy::kNotLarger}, {"not_smaller", Policy::kNotSmaller}};

template <class E>
std::optional<E> Named(const Attributes& attributes, const char* attribute, const Names<E>& names) {
  const std::string given = attributes.String(attribute);
  for (const auto& [name, value] : names) {
    if (given == name) return value;
  }
  return std::nullopt;
}

// Why this kernel does not support a node's attributes and element type, or "".
std::string WhyNot(const Attributes& attributes, DType dtype) {
  const auto unknown = [&](const char* name) {
    return "Resize with " + std::string(name) + " \"" + attributes.String(name) + "\" is not implemented";
  };
  const auto mode = Named(attributes, "mode", kModes);
  const auto transformation = Named(attributes, "coordinate_transformation_mode", kTransformations);
  if (!mode) return unknown("mode");
  if (!transformation) return unknown("coordinate_transformation_mode");
  if (!Named(attributes, "nearest_mode", kRoundings)) return unknown("nearest_mode");
  if (!Named(attributes, "keep_aspect_ratio_policy", kPolicies)) return unknown("keep_aspect_ratio_policy");
  if (*mode != Mode::kNearest)
    return IsFloating(dtype) ? "" : "Resize of other than floats is implemented for mode nearest only";
  if (attributes.Bool("antialias")) return "Resize with antialias is implemented for modes linear and cubic only";
  if (*transformation == Transformation::kCropAndResize && attributes.Float("extrapolation_value") != 0)
    return "Resize with an extrapolation_value is implemented for modes linear and cubic only";
  return "";
}

// One resized axis. `width` of the output is not rounded; [begin, end] is the part to crop.
struct Axis {
  int axis;
  int64_t in, out;
  double scale, begin, end;

  double width() const { return scale * static_cast<double>(in); }
  double Position(Transformation transformation, int64_t output) const;
  bool Inside(double position) const { return position >= 0 && position <= static_cast<double>(in - 1); }
};

double Axis::Position(Transformation transformation, int64_t output) const {
  const double o = static_cast<double>(output), last = static_cast<double>(in - 1);
  const double half_pixel = (o + 0.5) / scale - 0.5;
  switch (transformation) {
    case Transformation::kHalfPixel:
      return half_pixel;
    case Transformation::kHalfPixelSymmetric:
      return static_cast<double>(in) / 2 * (1 - static_cast<double>(out) / width()) + (o + 0.5) / scale - 0.5;
    case Transformation::kPytorchHalfPixel:
      return out > 1 ? half_pixel : 0;
    case Transformation::kAlignCorners:
      return output == 0 ? 0 : o * last / (width() - 1);
    case Transformation::kAsymmetric:
      return o / scale;
    case Transformation::kCropAndResize:
      return width() > 1 ? begin * last + o * (end - begin) * last / (width() - 1) : (begin + end) / 2 * last;
  }
  return 0;
}

int64_t Nearest(double position, Rounding rounding, int64_t in) {
  const double at = std::fmin(std::fmax(position, 0), static_cast<double>(in - 1));
  switch (rounding) {
    case Rounding::kPreferFloor:
      return static_cast<int64_t>(std::ceil(at - 0.5));
    case Rounding::kPreferCeil:
      return static_cast<int64_t>(std::floor(at + 0.5));
    case Rounding::kFloor:
      return static_cast<int64_t>(std::floor(at));
    case Rounding::kCeil:
      break;
  }
  return static_cast<int64_t>(std::ceil(at));
}

std::vector<double> ReadReals(const char* name, const TensorView& view) {
  NPU_CHECK(view.shape.rank() <= 1, "[Resize] expected ", name, " to be a list, got shape ", view.shape);
  std::vector<double> values;
  DispatchTypes("Resize", view.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < view.elements(); ++i) {
      if constexpr (kIsHalf<T>) {
        values.push_back(ToFloat(view.as<const T>()[i]));
      } else {
        values.push_back(view.as<const T>()[i]);
      }
    }
  });
  return values;
}

// Converts a size that was computed in floating point.
int64_t SizeOf(double size) {
  NPU_CHECK(size >= 0 && size < 0x1p53, "[Resize] expected sizes in range, got ", size);
  return static_cast<int64_t>(size);
}

class ResizeKernel final : public Kernel {
 public:
  explicit ResizeKernel(const KernelInfo& info) {
    const std::string why = WhyNot(info.attributes, DType::kFloat32);
    NPU_CHECK(why.empty(), "[Resize] ", why);
    mode_ = *Named(info.attributes, "mode", kModes);
    transformation_ = *Named(info.attributes, "coordinate_transformation_mode", kTransformations);
    rounding_ = *Named(info.attributes, "nearest_mode", kRoundings);
    policy_ = *Named(info.attributes, "keep_aspect_ratio_policy", kPolicies);
    antialias_ = info.attributes.Bool("antialias");
    exclude_outside_ = info.attributes.Bool("exclude_outside");
    extrapolation_ = info.attributes.Float("extrapolation_value");
    if (info.attributes.Has("axes")) axes_ = info.attributes.Ints("axes");
    filter_ = {mode_ == Mode::kCubic ? Filter::Kind::kCubic : Filter::Kind::kLinear,
               info.attributes.Float("cubic_coeff_a")};
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    std::vector<Axis> axes = AxesOf(x.shape);
    SetSizes(ctx, axes);
    SetCrop(ctx, axes);
    Shape shape = x.shape;
    for (const Axis& axis : axes) shape[axis.axis] = axis.out;
    const TensorView y = ctx.Output(0, x.dtype, shape);  // an excessive size fails here, before taps are made
    if (y.elements() == 0) return;
    if (transformation_ != Transformation::kCropAndResize)
      std::erase_if(axes, [](const Axis& axis) { return axis.scale == 1 && axis.in == axis.out; });
    if (mode_ == Mode::kNearest) {
      LaunchMappedCopy(ctx, "Resize", x, y, MapsOf(x.shape, axes), nullptr);
    } else {
      LaunchTaps(ctx, "Resize", x, y, TapsOf(axes));
    }
  }

 private:
  std::vector<Axis> AxesOf(const Shape& shape) const {
    std::vector<Axis> axes;
    uint32_t seen = 0;
    const auto add = [&](int axis) {
      NPU_CHECK((seen & (1u << axis)) == 0, "[Resize] expected axes without repetition, got axis ", axis, " twice");
      seen |= 1u << axis;
      axes.push_back({axis, shape[axis], shape[axis], 1, 0, 1});
    };
    if (axes_) {
      for (const int64_t axis : *axes_) add(NormalizeAxis("Resize", axis, shape.rank()));
    } else {
      for (int d = 0; d < shape.rank(); ++d) add(d);
    }
    return axes;
  }

  void SetSizes(OpContext& ctx, std::vector<Axis>& axes) const {
    const TensorView scales = ctx.Input(2), sizes = ctx.Input(3);
    const bool by_scales = scales && scales.elements() > 0, by_sizes = sizes && sizes.elements() > 0;
    NPU_CHECK(axes.empty() || by_scales != by_sizes, "[Resize] expected either scales or sizes, got ",
              by_scales ? "both" : "neither");
    if (by_scales) {
      SetByScales(ReadReals("scales", scales), axes);
    } else if (by_sizes) {
      SetBySizes(ReadHostInts("Resize", "sizes", sizes), axes);
    }
  }

  static void SetByScales(const std::vector<double>& scales, std::vector<Axis>& axes) {
    NPU_CHECK(scales.size() == axes.size(), "[Resize] expected a scale for each of ", axes.size(), " axes, got ",
              scales.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      NPU_CHECK(std::isfinite(scales[i]) && scales[i] > 0, "[Resize] expected positive finite scales, got ", scales[i]);
      axes[i].scale = scales[i];
      // In float, as in ONNX's shape inference.
      axes[i].out = SizeOf(std::floor(static_cast<float>(axes[i].in) * static_cast<float>(scales[i])));
    }
  }

  void SetBySizes(const std::vector<int64_t>& sizes, std::vector<Axis>& axes) const {
    NPU_CHECK(sizes.size() == axes.size(), "[Resize] expected a size for each of ", axes.size(), " axes, got ",
              sizes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      Axis& axis = axes[i];
      NPU_CHECK(sizes[i] >= 0 && (axis.in > 0 || sizes[i] == 0), "[Resize] expected a size that axis ", axis.axis,
                " of ", axis.in, " elements can have, got ", sizes[i]);
      axis.out = sizes[i];
      if (axis.in > 0) axis.scale = static_cast<double>(axis.out) / static_cast<double>(axis.in);
    }
    if (policy_ == Policy::kStretch) return;
    double scale = axes[0].scale;
    for (const Axis& axis : axes)
      scale = policy_ == Policy::kNotLarger ? std::min(scale, axis.scale) : std::max(scale, axis.scale);
    for (Axis& axis : axes) {
      axis.scale = scale;
      axis.out = SizeOf(std::floor(axis.width() + 0.5));
    }
  }

  void SetCrop(OpContext& ctx, std::vector<Axis>& axes) const {
    if (transformation_ != Transformation::kCropAndResize) return;
    const TensorView roi = ctx.Input(1);
    NPU_CHECK(roi, "[Resize] expected a roi for tf_crop_and_resize, got none");
    const std::vector<double> bounds = ReadReals("roi", roi);
    NPU_CHECK(bounds.size() == 2 * axes.size(), "[Resize] expected two bounds of roi for each of ", axes.size(),
              " axes, got ", bounds.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      axes[i].begin = bounds[i];
      axes[i].end = bounds[i + axes.size()];
    }
  }

  bool Extrapolates(const Axis& axis, double position) const {
    return transformation_ == Transformation::kCropAndResize && !axis.Inside(position);
  }

  std::vector<AxisMap> MapsOf(const Shape& in, const std::vector<Axis>& axes) const {
    std::vector<AxisMap> maps;
    for (int d = 0; d < in.rank(); ++d) {
      maps.emplace_back(static_cast<size_t>(in[d]));
      std::iota(maps.back().begin(), maps.back().end(), int64_t{0});
    }
    for (const Axis& axis : axes) {
      AxisMap& map = maps[static_cast<size_t>(axis.axis)];
      map.clear();
      for (int64_t o = 0; o < axis.out; ++o) {
        const double position = axis.Position(transformation_, o);
        map.push_back(Extrapolates(axis, position) ? -1 : Nearest(position, rounding_, axis.in));
      }
    }
    return maps;
  }

  std::vector<AxisTaps> TapsOf(const std::vector<Axis>& axes) const {
    std::vector<AxisTaps> all;
    for (const Axis& axis : axes) {
      Taps taps(axis.in);
      const double stretched = antialias_ ? std::max(1.0, 1 / axis.scale) : 1;
      for (int64_t o = 0; o < axis.out; ++o) {
        const double position = axis.Position(transformation_, o);
        if (Extrapolates(axis, position)) {
          taps.AddConstant(extrapolation_);
        } else {
          taps.Add(position, filter_, stretched, exclude_outside_);
        }
      }
      all.push_back({axis.axis, std::move(taps)});
    }
    return all;
  }

  Mode mode_;
  Transformation transformation_;
  Rounding rounding_;
  Policy policy_;
  bool antialias_, exclude_outside_;
  double extrapolation_;
  std::optional<std::vector<int64_t>> axes_;
  Filter filter_;
};

NPU_ONNX_KERNEL({
    .type = "Resize",
    .since = 11,
    .until = 19,
    .inputs = {Input("X", kFixedWidth), OptionalHostInput("roi", {DType::kFloat32, DType::kFloat16, DType::kFloat64}),
               OptionalHostInput("scales", {DType::kFloat32}), OptionalHostInput("sizes", kInt64)},
    .outputs = {Output("Y", kFixedWidth)},
    .attributes = {StringAttribute("mode", "nearest"), StringAttribute("coordinate_transformation_mode", "half_pixel"),
                   StringAttribute("nearest_mode", "round_prefer_floor"),
                   StringAttribute("keep_aspect_ratio_policy", "stretch"), IntAttribute("antialias", 0),
                   IntAttribute("exclude_outside", 0), FloatAttribute("extrapolation_value", 0.0),
                   FloatAttribute("cubic_coeff_a", -0.75), IntsAttribute("axes")},
    .make = MakeKernel<ResizeKernel>,
    .unsupported = [](const NodeView& node) { return WhyNot(node.attributes, node.inputs[0]); },
});

}  // namespace
}  // namespace npu
