// Resize (ai.onnx 10 to 19) and its predecessor Upsample (7, 9).
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
#include "ep/kernels/op_check.h"
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
// kByScale, of versions before 11: the sample before where an axis grows, behind where it shrinks, as in onnxruntime.
enum class Rounding { kPreferFloor, kPreferCeil, kFloor, kCeil, kByScale };
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
  const double o = static_cast<double>(output), last = static_cast<double>(in - 1),
               steps = static_cast<double>(out - 1);
  const double half_pixel = (o + 0.5) / scale - 0.5;
  switch (transformation) {
    case Transformation::kHalfPixel:
      return half_pixel;
    case Transformation::kHalfPixelSymmetric:
      return static_cast<double>(in) / 2 * (1 - static_cast<double>(out) / width()) + (o + 0.5) / scale - 0.5;
    case Transformation::kPytorchHalfPixel:
      return out > 1 ? half_pixel : 0;
    case Transformation::kAlignCorners:
      return output == 0 ? 0 : o * last / steps;
    case Transformation::kAsymmetric:
      return o / scale;
    case Transformation::kCropAndResize:
      return out > 1 ? begin * last + o * (end - begin) * last / steps : (begin + end) / 2 * last;
  }
  return 0;
}

int64_t Nearest(double position, Rounding rounding, const Axis& axis) {
  const double at = std::fmin(std::fmax(position, 0), static_cast<double>(axis.in - 1));
  switch (rounding) {
    case Rounding::kPreferFloor:
      return static_cast<int64_t>(std::ceil(at - 0.5));
    case Rounding::kPreferCeil:
      return static_cast<int64_t>(std::floor(at + 0.5));
    case Rounding::kFloor:
      return static_cast<int64_t>(std::floor(at));
    case Rounding::kByScale:
      if (axis.scale >= 1) return static_cast<int64_t>(std::floor(at));
      break;
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

// How elements are found and weighted; the defaults are those of the forms before Resize 11.
struct Settings {
  Mode mode;
  Transformation transformation = Transformation::kAsymmetric;
  Rounding rounding = Rounding::kFloor;
  Policy policy = Policy::kStretch;
  bool antialias = false, exclude_outside = false;
  double extrapolation = 0;
  std::optional<std::vector<int64_t>> axes = {};
  Filter filter = {};
};

class ResizingKernel : public Kernel {
 public:
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    std::vector<Axis> axes = AxesOf(x.shape);
    SetSizes(ctx, axes);
    SetCrop(ctx, axes);
    Shape shape = x.shape;
    for (const Axis& axis : axes) shape[axis.axis] = axis.out;
    const TensorView y = ctx.Output(0, x.dtype, shape);  // an excessive size fails here, before taps are made
    if (y.elements() == 0) return;
    if (how_.transformation != Transformation::kCropAndResize)
      std::erase_if(axes, [](const Axis& axis) { return axis.scale == 1 && axis.in == axis.out; });
    if (how_.mode == Mode::kNearest) {
      LaunchMappedCopy(ctx, op_, x, y, MapsOf(x.shape, axes), nullptr);
    } else {
      LaunchTaps(ctx, op_, x, y, TapsOf(axes));
    }
  }

 protected:
  ResizingKernel(const char* op, Settings settings) : op_(op), how_(std::move(settings)) {}
  // Sets the output size and the scale of each axis.
  virtual void SetSizes(OpContext& ctx, std::vector<Axis>& axes) const = 0;
  virtual void SetCrop(OpContext& /*ctx*/, std::vector<Axis>& /*axes*/) const {}

  void SetByScales(const std::vector<double>& scales, std::vector<Axis>& axes) const {
    NPU_OP_CHECK(op_, scales.size() == axes.size(), "expected a scale for each of ", axes.size(), " axes, got ",
                 scales.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      NPU_OP_CHECK(op_, std::isfinite(scales[i]) && scales[i] > 0, "expected positive finite scales, got ", scales[i]);
      axes[i].scale = scales[i];
      // In float, as in ONNX's shape inference.
      axes[i].out = SizeOf(std::floor(static_cast<float>(axes[i].in) * static_cast<float>(scales[i])));
    }
  }

  const char* op_;
  Settings how_;

 private:
  std::vector<Axis> AxesOf(const Shape& shape) const {
    std::vector<Axis> axes;
    uint32_t seen = 0;
    const auto add = [&](int axis) {
      NPU_CHECK((seen & (1u << axis)) == 0, "[Resize] expected axes without repetition, got axis ", axis, " twice");
      seen |= 1u << axis;
      axes.push_back({axis, shape[axis], shape[axis], 1, 0, 1});
    };
    if (how_.axes) {
      for (const int64_t axis : *how_.axes) add(NormalizeAxis("Resize", axis, shape.rank()));
    } else {
      for (int d = 0; d < shape.rank(); ++d) add(d);
    }
    return axes;
  }

  bool Extrapolates(const Axis& axis, double position) const {
    return how_.transformation == Transformation::kCropAndResize && !axis.Inside(position);
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
        const double position = axis.Position(how_.transformation, o);
        map.push_back(Extrapolates(axis, position) ? -1 : Nearest(position, how_.rounding, axis));
      }
    }
    return maps;
  }

  std::vector<AxisTaps> TapsOf(const std::vector<Axis>& axes) const {
    std::vector<AxisTaps> all;
    for (const Axis& axis : axes) {
      Taps taps(axis.in);
      const double stretched = how_.antialias ? std::max(1.0, 1 / axis.scale) : 1;
      for (int64_t o = 0; o < axis.out; ++o) {
        const double position = axis.Position(how_.transformation, o);
        if (Extrapolates(axis, position)) {
          taps.AddConstant(how_.extrapolation);
        } else {
          taps.Add(position, how_.filter, stretched, how_.exclude_outside);
        }
      }
      all.push_back({axis.axis, std::move(taps)});
    }
    return all;
  }
};

class ResizeKernel final : public ResizingKernel {
 public:
  explicit ResizeKernel(const KernelInfo& info) : ResizingKernel("Resize", SettingsOf(info.attributes)) {}

 private:
  static Settings SettingsOf(const Attributes& attributes) {
    const std::string why = WhyNot(attributes, DType::kFloat32);
    NPU_CHECK(why.empty(), "[Resize] ", why);
    const Mode mode = *Named(attributes, "mode", kModes);
    return {
        .mode = mode,
        .transformation = *Named(attributes, "coordinate_transformation_mode", kTransformations),
        .rounding = *Named(attributes, "nearest_mode", kRoundings),
        .policy = *Named(attributes, "keep_aspect_ratio_policy", kPolicies),
        .antialias = attributes.Bool("antialias"),
        .exclude_outside = attributes.Bool("exclude_outside"),
        .extrapolation = attributes.Float("extrapolation_value"),
        .axes = attributes.Has("axes") ? std::optional(attributes.Ints("axes")) : std::nullopt,
        .filter = {mode == Mode::kCubic ? Filter::Kind::kCubic : Filter::Kind::kLinear,
                   attributes.Float("cubic_coeff_a")},
    };
  }

  void SetSizes(OpContext& ctx, std::vector<Axis>& axes) const override {
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

  void SetCrop(OpContext& ctx, std::vector<Axis>& axes) const override {
    if (how_.transformation != Transformation::kCropAndResize) return;
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
    if (how_.policy == Policy::kStretch) return;
    double scale = axes[0].scale;
    for (const Axis& axis : axes)
      scale = how_.policy == Policy::kNotLarger ? std::min(scale, axis.scale) : std::max(scale, axis.scale);
    for (Axis& axis : axes) {
      axis.scale = scale;
      axis.out = SizeOf(std::floor(axis.width() + 0.5));
    }
  }
};

// Upsample, and Resize before version 11: modes nearest and linear.
std::string WhyNotScaled(const Attributes& attributes, DType dtype) {
  const auto mode = Named(attributes, "mode", kModes);
  if (!mode || *mode == Mode::kCubic) return "mode \"" + attributes.String("mode") + "\" is not implemented";
  if (*mode == Mode::kLinear && !IsFloating(dtype)) return "other than floats are resized with mode nearest only";
  return "";
}

class ScaleKernel final : public ResizingKernel {
 public:
  explicit ScaleKernel(const KernelInfo& info)
      : ResizingKernel(info.op_type == "Resize" ? "Resize" : "Upsample", SettingsOf(info)) {
    if (info.attributes.Has("scales")) scales_ = info.attributes.Floats("scales");
  }

 private:
  static Settings SettingsOf(const KernelInfo& info) {
    const std::string why = WhyNotScaled(info.attributes, DType::kFloat32);
    NPU_OP_CHECK(info.op_type, why.empty(), why);
    return {.mode = *Named(info.attributes, "mode", kModes), .rounding = Rounding::kByScale};
  }

  void SetSizes(OpContext& ctx, std::vector<Axis>& axes) const override {
    SetByScales(scales_ ? *scales_ : ReadReals("scales", ctx.Input(1)), axes);
  }

  std::optional<std::vector<double>> scales_;  // of the form that has them as an attribute
};

// Scales that give a fraction of an element as the size: the standard's text, torch and onnxruntime align the corners
// of the rounded size, onnx's tests, which give the scales as an input, those of the fraction.
std::string WhyNotAligned(const NodeView& node) {
  const bool scaled = node.inputs.size() > 2 && node.inputs[2] != DType::kUndefined && !node.constant[2];
  return scaled && Named(node.attributes, "coordinate_transformation_mode", kTransformations) ==
                       Transformation::kAlignCorners
             ? "Resize with align_corners is implemented for sizes and constant scales only"
             : "";
}

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
    .unsupported =
        [](const NodeView& node) {
          const std::string why = WhyNot(node.attributes, node.inputs[0]);
          return why.empty() ? WhyNotAligned(node) : why;
        },
});

// The forms that have only scales.
OpDef ScaledDefinition(const char* type, DTypeSet dtypes, int version, std::vector<ArgDef> scales_input,
                       std::vector<AttrDef> scales_attribute) {
  std::vector<ArgDef> inputs = {Input("X", dtypes)};
  inputs.insert(inputs.end(), scales_input.begin(), scales_input.end());
  std::vector<AttrDef> attributes = {StringAttribute("mode", "nearest")};
  attributes.insert(attributes.end(), scales_attribute.begin(), scales_attribute.end());
  return {
      .type = type,
      .since = version,
      .until = version,
      .inputs = std::move(inputs),
      .outputs = {Output("Y", dtypes)},
      .attributes = std::move(attributes),
      .make = MakeKernel<ScaleKernel>,
      .unsupported = [](const NodeView& node) { return WhyNotScaled(node.attributes, node.inputs[0]); },
  };
}

const ArgDef kScalesInput = HostInput("scales", {DType::kFloat32});
NPU_ONNX_KERNEL(ScaledDefinition("Resize", kFixedWidth, 10, {kScalesInput}, {}));
NPU_ONNX_KERNEL(ScaledDefinition("Upsample", kWithoutBFloat16, 9, {kScalesInput}, {}));
NPU_ONNX_KERNEL(ScaledDefinition("Upsample", kWithoutBFloat16, 7, {},
                                 {{.name = "scales", .kind = AttrDef::Kind::kFloats, .required = true}}));

}  // namespace
}  // namespace npu
