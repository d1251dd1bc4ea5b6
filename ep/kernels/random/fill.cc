// Dense tensors of random numbers. Element i depends only on the generator's state and on i, not on the threads or the
// instruction set: this folder is compiled without contraction to FMA.
#include <algorithm>
#include <cmath>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/random/distributions.h"
#include "ep/runtime/random.h"

namespace npu {
namespace {

struct Exponential {
  static constexpr const char* kName = "RandomExponential";
  static constexpr const char *kFirst = "rate", *kSecond = nullptr;
  using Parameter = double;
  using Types = FloatTypes;
  template <class T, class R = ComputeType<T>>
  static T From(uint64_t bits, double rate, double) {
    // In double, where u is never 1, so that -log(u) is never 0.
    const double u = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
    return static_cast<T>(static_cast<R>(-std::log(u) / rate));
  }
};

struct Integers {  // first + [0, range), all 64 bits where range is 0
  static constexpr const char* kName = "RandomIntegers";
  static constexpr const char *kFirst = "first", *kSecond = "range";
  using Parameter = int64_t;
  using Types = ::npu::Types<float, Float16, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
                             uint32_t, uint64_t, bool>;
  template <class T>
  static T From(uint64_t bits, int64_t first, int64_t range) {
    const uint64_t within = range == 0 ? bits : bits % static_cast<uint64_t>(range);
    const auto value = static_cast<int64_t>(static_cast<uint64_t>(first) + within);
    if constexpr (kIsHalf<T>) {
      return static_cast<T>(static_cast<float>(value));
    } else {
      return static_cast<T>(value);
    }
  }
};

template <class Distribution>
class FillKernel final : public Kernel {
 public:
  using Parameter = typename Distribution::Parameter;

  explicit FillKernel(const KernelInfo& info) : dtype_(static_cast<DType>(info.attributes.Int("dtype"))) {}
  void Compute(OpContext& ctx) const override {
    constexpr const char* kOp = Distribution::kName;
    const Shape shape(ReadHostInts(kOp, "shape", ctx.Input(0)));
    const int64_t n = shape.Elements();
    const DrawnPosition position({static_cast<uint64_t>(ReadHostInt(kOp, "seed", ctx.Input(1))),
                                  static_cast<uint64_t>(ReadHostInt(kOp, "offset", ctx.Input(2)))});
    const Parameter a = Read(ctx, 3, Distribution::kFirst);
    const Parameter b = Distribution::kSecond == nullptr ? Parameter{} : Read(ctx, 4, Distribution::kSecond);
    DispatchTypes(kOp, dtype_, typename Distribution::Types{}, [&](auto type) {
      using T = decltype(type);
      const TensorView out = ctx.Output(0, dtype_, shape);
      if (n == 0) return;
      ctx.Launch(kOp, [position, n, a, b, to = out.as<T>()] {
        const PhiloxState state = position.Now();
        ParallelFor((n + 1) / 2, kMathGrain, [&](int64_t begin, int64_t end) {
          Fill<Distribution>(Philox{state.seed}, state.offset + static_cast<uint64_t>(begin),
                             std::min(2 * end, n) - 2 * begin, a, b, to + 2 * begin);
        });
      });
    });
  }

 private:
  static Parameter Read(OpContext& ctx, size_t i, const char* name) {
    const TensorView view = ctx.Input(i);
    constexpr DType kType = DTypeOf<Parameter>::value;
    NPU_OP_CHECK(Distribution::kName, view && view.dtype == kType && view.elements() == 1, "expected ", name,
                 " to be one ", NameOf(kType));
    return *view.as<const Parameter>();
  }

  DType dtype_;
};

// Seed and offset are a position of the generator, as DrawPosition returns it.
template <class Distribution>
OpDef FillDef() {
  constexpr DTypeSet kParameter{DTypeOf<typename Distribution::Parameter>::value};
  OpDef def{
      .domain = "npu.aten",
      .type = Distribution::kName,
      .inputs = {HostInput("shape", kInt64), HostInput("seed", kInt64), HostInput("offset", kInt64),
                 HostInput(Distribution::kFirst, kParameter)},
      .outputs = {Output("out", SetOf(typename Distribution::Types{}))},
      .attributes = {RequiredInt("dtype")},
      .make = MakeKernel<FillKernel<Distribution>>,
  };
  if (Distribution::kSecond != nullptr) def.inputs.push_back(HostInput(Distribution::kSecond, kParameter));
  return def;
}

NPU_ONNX_KERNEL(FillDef<Uniform>());
NPU_ONNX_KERNEL(FillDef<Normal>());
NPU_ONNX_KERNEL(FillDef<Exponential>());
NPU_ONNX_KERNEL(FillDef<Integers>());

}  // namespace
}  // namespace npu
