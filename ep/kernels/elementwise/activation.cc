// Relu, LeakyRelu, Sigmoid, Tanh, Softplus, Gelu, Swish. NaN goes in and comes out.
#include <cmath>
#include <numbers>

#include "ep/kernels/elementwise/unary.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

struct Activation {
  static constexpr int64_t kGrain = kMathGrain;
  using Types = FloatTypes;
};

struct Relu {
  static constexpr const char* kName = "Relu";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = SignedTypes;
  template <class C>
  C operator()(C x) const {
    return x < 0 ? C{0} : x;
  }
};

struct LeakyRelu : Activation {
  static constexpr const char* kName = "LeakyRelu";
  LeakyRelu() = default;
  explicit LeakyRelu(const KernelInfo& info) : alpha(info.attributes.Float("alpha")) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? static_cast<C>(alpha) * x : x;
  }
  double alpha = 0.01;
};

struct Sigmoid : Activation {
  static constexpr const char* kName = "Sigmoid";
  float operator()(float x) const { return math::Sigmoid(x); }
  double operator()(double x) const {
    const double z = std::exp(-std::fabs(x));
    return (x < 0 ? z : 1.0) / (1.0 + z);
  }
};

struct Tanh : Activation {
  static constexpr const char* kName = "Tanh";
  float operator()(float x) const { return math::Tanh(x); }
  double operator()(double x) const { return std::tanh(x); }
};

struct Softplus : Activation {
  static constexpr const char* kName = "Softplus";
  float operator()(float x) const { return (x > 0 ? x : 0.0f) + math::Log1pSmall(math::Exp(-std::fabs(x))); }
  double operator()(double x) const { return (x > 0 ? x : 0.0) + std::log1p(std::exp(-std::fabs(x))); }
};

struct GeluErf : Activation {
  static constexpr const char* kName = "Gelu";
  float operator()(float x) const { return 0.5f * x * (1.0f + math::Erf(x * std::numbers::sqrt2_v<float> * 0.5f)); }
  double operator()(double x) const { return 0.5 * x * (1.0 + std::erf(x * std::numbers::sqrt2 * 0.5)); }
};

struct GeluTanh : Activation {
  static constexpr const char* kName = "Gelu";
  // sqrt(2 / pi) (x + 0.044715 x³)
  template <class C>
  static C Inner(C x) {
    constexpr C kScale = static_cast<C>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    return kScale * (x + static_cast<C>(0.044715) * x * x * x);
  }
  float operator()(float x) const { return 0.5f * x * (1.0f + math::Tanh(Inner(x))); }
  double operator()(double x) const { return 0.5 * x * (1.0 + std::tanh(Inner(x))); }
};

struct Swish : Activation {
  static constexpr const char* kName = "Swish";
  Swish() = default;
  explicit Swish(const KernelInfo& info) : alpha(info.attributes.Float("alpha")) {}
  float operator()(float x) const { return x * math::Sigmoid(static_cast<float>(alpha) * x); }
  double operator()(double x) const { return x * Sigmoid()(alpha * x); }
  double alpha = 1.0;
};

std::unique_ptr<Kernel> MakeGelu(const KernelInfo& info) {
  const std::string form = info.attributes.String("approximate");
  NPU_CHECK(form == "none" || form == "tanh", "[Gelu] expected approximate \"none\" or \"tanh\", got \"", form, "\"");
  if (form == "tanh") return std::make_unique<UnaryKernel<GeluTanh>>(info);
  return std::make_unique<UnaryKernel<GeluErf>>(info);
}

OpDef GeluDef() {
  OpDef def = UnaryDef<GeluErf>(20, 20);
  def.attributes = {StringAttribute("approximate", "none")};
  def.make = MakeGelu;
  def.unsupported = [](const NodeView& node) -> std::string {
    const std::string form = node.attributes.String("approximate");
    return form == "none" || form == "tanh" ? "" : "Gelu with approximate \"" + form + "\" is not implemented";
  };
  return def;
}

template <class Op>
OpDef AlphaDef(int since, int until, double alpha) {
  OpDef def = UnaryDef<Op>(since, until);
  def.attributes = {FloatAttribute("alpha", alpha)};
  return def;
}

NPU_ONNX_KERNEL(UnaryDef<Relu>(6, 14));
NPU_ONNX_KERNEL(AlphaDef<LeakyRelu>(6, 16, 0.01));
NPU_ONNX_KERNEL(UnaryDef<Sigmoid>(6, 13));
NPU_ONNX_KERNEL(UnaryDef<Tanh>(6, 13, "input", "output"));
NPU_ONNX_KERNEL(UnaryDef<Softplus>(1, 22));
NPU_ONNX_KERNEL(GeluDef());
NPU_ONNX_KERNEL(AlphaDef<Swish>(24, 24, 1.0));

}  // namespace
}  // namespace npu
