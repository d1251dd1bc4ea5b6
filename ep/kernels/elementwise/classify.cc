// Not, IsNaN, IsInf.
#include <array>
#include <limits>
#include <utility>

#include "ep/kernels/elementwise/function.h"
#include "ep/kernels/elementwise/narrow.h"

namespace npu {
namespace {

// Beside the kernel of an operator of wider floats, what it says of each of the 256 floats of 8 bits.
class Float8Kernel final : public Kernel {
 public:
  using Test = bool (*)(float, const Attributes&);

  Float8Kernel(const KernelInfo& info, std::unique_ptr<Kernel> wider, const char* op, Test test)
      : op_(op), wider_(std::move(wider)), attributes_(info.attributes), test_(test) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    if (!kFloat8.Contains(x.dtype)) return wider_->Compute(ctx);
    const TensorView y = ctx.Output(0, DType::kBool, x.shape);
    if (y.elements() == 0) return;
    ctx.Launch(op_, [this, x, y] {
      const std::array<bool, 256> said = OfAllCodes(x.dtype);
      ParallelFor(x.elements(), kCheapGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y.as<uint8_t>()[i] = said[x.as<const uint8_t>()[i]];
      });
    });
  }

 private:
  std::array<bool, 256> OfAllCodes(DType dtype) const {
    std::array<uint8_t, 256> codes;
    std::array<float, 256> values;
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
    UpcastNarrow(dtype, codes.data(), 0, 256, values.data());
    std::array<bool, 256> said;
    for (size_t i = 0; i < said.size(); ++i) said[i] = test_(values[i], attributes_);
    return said;
  }

  const char* op_;
  std::unique_ptr<Kernel> wider_;
  Attributes attributes_;
  Test test_;
};

OpDef WithFloat8(OpDef def, const char* op, Float8Kernel::Test test) {
  def.inputs[0].dtypes = def.inputs[0].dtypes | kFloat8;
  def.make = [wider = def.make, op, test](const KernelInfo& info) -> std::unique_ptr<Kernel> {
    return std::make_unique<Float8Kernel>(info, wider(info), op, test);
  };
  return def;
}

constexpr auto kIsInfinity = [](auto x, auto negative, auto positive) {
  constexpr auto kInfinity = std::numeric_limits<decltype(x)>::infinity();
  return (positive != 0 && x == kInfinity) || (negative != 0 && x == -kInfinity);
};

NPU_ONNX_KERNEL(WithFloat8(OnnxFunction<"IsNaN", FloatTypes, kCheapGrain>([](auto x) { return x != x; }, {9, 20}, {"X"},
                                                                          "Y"),
                           "IsNaN", [](float x, const Attributes&) { return x != x; }));
NPU_ONNX_KERNEL(WithFloat8(OnnxFunction<"IsInf", FloatTypes, kCheapGrain>(kIsInfinity, {10, 20}, {"X"}, "Y",
                                                                          {IntAttribute("detect_negative", 1),
                                                                           IntAttribute("detect_positive", 1)}),
                           "IsInf", [](float x, const Attributes& a) {
                             return kIsInfinity(x, a.Int("detect_negative"), a.Int("detect_positive"));
                           }));
NPU_ONNX_KERNEL(ForShapes(OnnxFunction<"Not", Types<Truth>, kCheapGrain>([](bool x) { return !x; }, {1, 1}, {"X"}, "Y"),
                          ShapeArithmetic::kFirst));

}  // namespace
}  // namespace npu
