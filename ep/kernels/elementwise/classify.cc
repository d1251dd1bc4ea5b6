// Not, IsNaN, IsInf.
#include <cmath>
#include <limits>

#include "ep/kernels/elementwise/unary.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

struct IsNaN {
  static constexpr const char* kName = "IsNaN";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = FloatTypes;
  template <class C>
  bool operator()(C x) const {
    return x != x;
  }
};

struct IsInf {
  static constexpr const char* kName = "IsInf";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = FloatTypes;
  IsInf() = default;
  explicit IsInf(const KernelInfo& info)
      : positive(info.attributes.Bool("detect_positive")), negative(info.attributes.Bool("detect_negative")) {}
  template <class C>
  bool operator()(C x) const {
    constexpr C kInfinity = std::numeric_limits<C>::infinity();
    return (positive & (x == kInfinity)) | (negative & (x == -kInfinity));
  }
  bool positive = true, negative = true;
};

class NotKernel : public Kernel {
 public:
  explicit NotKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_CHECK(x.dtype == DType::kBool, "[Not] expected bool, got ", NameOf(x.dtype));
    const TensorView y = ctx.Output(0, DType::kBool, x.shape);
    const int64_t n = x.elements();
    if (n == 0) return;
    ctx.Launch("Not", [px = x.as<const uint8_t>(), py = y.as<uint8_t>(), n] {
      ParallelFor(n, kCheapGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) py[i] = px[i] == 0;
      });
    });
  }
};

template <class Op>
OpDef ClassifyDef(int since, int until, std::vector<AttrDef> attributes = {}) {
  constexpr DTypeSet kTypes = SetOf(typename Op::Types{});
  return {
      .type = Op::kName,
      .since = since,
      .until = until,
      .inputs = {Input("X", kTypes)},
      .outputs = {Output("Y", kBool)},
      .attributes = std::move(attributes),
      .make = MakeKernel<UnaryKernel<Op>>,
  };
}

NPU_ONNX_KERNEL(ClassifyDef<IsNaN>(9, 20));
NPU_ONNX_KERNEL(ClassifyDef<IsInf>(10, 20, {IntAttribute("detect_negative", 1), IntAttribute("detect_positive", 1)}));
NPU_ONNX_KERNEL({
    .type = "Not",
    .inputs = {Input("X", kBool)},
    .outputs = {Output("Y", kBool)},
    .may_alias = {{0, 0}},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<NotKernel>,
});

}  // namespace
}  // namespace npu
