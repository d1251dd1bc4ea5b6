// RandomUniform, RandomNormal (ai.onnx 1 to 22) and their forms of an input's shape; Bernoulli (15 to 22).
#include <utility>

#include "ep/kernels/elementwise/one_if.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/random/distributions.h"
#include "ep/kernels/random/node_generator.h"

namespace npu {
namespace {

// The type that a node asks for with `dtype`, or `otherwise`.
DType ReadType(const Attributes& attributes, DType otherwise) {
  return static_cast<DType>(attributes.Int("dtype", static_cast<int64_t>(otherwise)));
}

std::string WhyTypeUnsupported(const NodeView& node, DTypeSet types) {
  const int64_t given = node.attributes.Int("dtype", 0);
  const DType dtype = given != 0 ? static_cast<DType>(given) : node.inputs.empty() ? DType::kFloat32 : node.inputs[0];
  if (given >= 0 && given < 64 && types.Contains(dtype)) return "";
  return Concat(node.op_type, " of ONNX type ", static_cast<int64_t>(dtype), " is not implemented");
}

// The distributions with their parameters from the attributes of a node.
struct UniformOfNode : Uniform {
  static std::pair<double, double> Parameters(const Attributes& a) { return {a.Float("low"), a.Float("high")}; }
  static std::vector<AttrDef> Definition() { return {FloatAttribute("low", 0.0), FloatAttribute("high", 1.0)}; }
};
struct NormalOfNode : Normal {
  static std::pair<double, double> Parameters(const Attributes& a) { return {a.Float("mean"), a.Float("scale")}; }
  static std::vector<AttrDef> Definition() { return {FloatAttribute("mean", 0.0), FloatAttribute("scale", 1.0)}; }
};

template <class Distribution>
class RandomKernel final : public Kernel {
 public:
  explicit RandomKernel(const KernelInfo& info)
      : op_(info.op_type),
        attributes_(info.attributes),
        parameters_(Distribution::Parameters(info.attributes)),
        generator_(info.attributes) {}

  void Compute(OpContext& ctx) const override {
    const TensorView like = ctx.input_count() > 0 ? ctx.Input(0) : TensorView{};
    const DType dtype = ReadType(attributes_, like ? like.dtype : DType::kFloat32);
    const Shape shape = like ? like.shape : Shape(attributes_.Ints("shape"));
    for (const int64_t d : shape) NPU_OP_CHECK(op_, d >= 0, "expected dimensions of 0 or more, got ", shape);
    const TensorView y = ctx.Output(0, dtype, shape);
    const int64_t n = y.elements();
    if (n == 0) return;
    const DrawnSeed seed = generator_.Draw(ctx.stream());
    DispatchTypes(Distribution::kName, dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(Distribution::kName, [n, seed, parameters = parameters_, to = y.as<T>()] {
        const Philox words{seed.Now(), 0};
        ParallelFor((n + 1) / 2, kMathGrain, [&](int64_t begin, int64_t end) {
          Fill<Distribution>(words, static_cast<uint64_t>(begin), std::min(2 * end, n) - 2 * begin, parameters.first,
                             parameters.second, to + 2 * begin);
        });
      });
    });
  }

 private:
  std::string op_;
  Attributes attributes_;
  std::pair<double, double> parameters_;
  NodeGenerator generator_;
};

template <class Distribution>
OpDef RandomDef(const char* type, std::vector<ArgDef> inputs, std::vector<AttrDef> attributes) {
  OpDef def{
      .type = type,
      .since = 1,
      .until = 22,
      .inputs = std::move(inputs),
      .outputs = {Output("output", kAllFloats)},
      .attributes = std::move(attributes),
      .make = MakeKernel<RandomKernel<Distribution>>,
      .unsupported = [](const NodeView& node) { return WhyTypeUnsupported(node, kAllFloats); },
  };
  def.attributes.push_back(FloatAttribute("seed"));
  for (AttrDef& attribute : Distribution::Definition()) def.attributes.push_back(std::move(attribute));
  return def;
}

const AttrDef kShape{.name = "shape", .kind = AttrDef::Kind::kInts, .required = true};

NPU_ONNX_KERNEL(RandomDef<UniformOfNode>("RandomUniform", {}, {kShape, IntAttribute("dtype", 1)}));
NPU_ONNX_KERNEL(RandomDef<NormalOfNode>("RandomNormal", {}, {kShape, IntAttribute("dtype", 1)}));
NPU_ONNX_KERNEL(RandomDef<UniformOfNode>("RandomUniformLike", {Input("input", kFixedWidth)}, {IntAttribute("dtype")}));
NPU_ONNX_KERNEL(RandomDef<NormalOfNode>("RandomNormalLike", {Input("input", kFixedWidth)}, {IntAttribute("dtype")}));

// 1 with the probability in the input, else 0.
template <class P, class T>
void Toss(const Philox& generator, int64_t block, int64_t n, const P* probability, T* out) {
  ForEachBits(generator, static_cast<uint64_t>(block), n, [=](int64_t i, uint64_t bits) {
    out[i] = OneIf<T>(Unit<double>(bits) < static_cast<double>(Upcast(probability[i])));
  });
}

class BernoulliKernel final : public Kernel {
 public:
  explicit BernoulliKernel(const KernelInfo& info) : attributes_(info.attributes), generator_(info.attributes) {}

  void Compute(OpContext& ctx) const override {
    const TensorView p = ctx.Input(0);
    const TensorView y = ctx.Output(0, ReadType(attributes_, p.dtype), p.shape);
    const int64_t n = y.elements();
    if (n == 0) return;
    const DrawnSeed seed = generator_.Draw(ctx.stream());
    DispatchTypes("Bernoulli", p.dtype, FloatTypes{}, [&](auto probability) {
      DispatchTypes("Bernoulli", y.dtype, FixedWidthTypes{}, [&](auto type) {
        using P = decltype(probability);
        using T = decltype(type);
        ctx.Launch("Bernoulli", [n, seed, from = p.as<const P>(), to = y.as<T>()] {
          const Philox words{seed.Now(), 0};
          ParallelFor((n + 1) / 2, kMathGrain, [&](int64_t begin, int64_t end) {
            Toss(words, begin, std::min(2 * end, n) - 2 * begin, from + 2 * begin, to + 2 * begin);
          });
        });
      });
    });
  }

 private:
  Attributes attributes_;
  NodeGenerator generator_;
};

NPU_ONNX_KERNEL({
    .type = "Bernoulli",
    .since = 15,
    .until = 22,
    .inputs = {Input("input", kAllFloats)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("dtype"), FloatAttribute("seed")},
    .make = MakeKernel<BernoulliKernel>,
    .unsupported = [](const NodeView& node) { return WhyTypeUnsupported(node, kFixedWidth); },
});

}  // namespace
}  // namespace npu
