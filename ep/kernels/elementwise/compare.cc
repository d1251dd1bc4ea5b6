// Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And, Or, Xor. A comparison with NaN is false.
#include <functional>

#include "ep/kernels/elementwise/binary.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

template <class F>
struct Comparison {
  using Types = NumericTypes;
  template <class C>
  static bool Apply(C a, C b) {
    return F{}(a, b);
  }
};
struct Equal : Comparison<std::equal_to<>> {
  static constexpr const char* kName = "Equal";
};
struct Less : Comparison<std::less<>> {
  static constexpr const char* kName = "Less";
};
struct LessOrEqual : Comparison<std::less_equal<>> {
  static constexpr const char* kName = "LessOrEqual";
};
struct Greater : Comparison<std::greater<>> {
  static constexpr const char* kName = "Greater";
};
struct GreaterOrEqual : Comparison<std::greater_equal<>> {
  static constexpr const char* kName = "GreaterOrEqual";
};

// Booleans are truth values, whatever byte says true.
template <class F>
struct Logical {
  static bool Apply(uint8_t a, uint8_t b) { return F{}(a != 0, b != 0); }
};
struct And : Logical<std::logical_and<>> {
  static constexpr const char* kName = "And";
};
struct Or : Logical<std::logical_or<>> {
  static constexpr const char* kName = "Or";
};
struct Xor : Logical<std::not_equal_to<>> {
  static constexpr const char* kName = "Xor";
};
struct EqualBool : Logical<std::equal_to<>> {
  static constexpr const char* kName = "Equal";
};

template <class Op>
class LogicalKernel : public Kernel {
 public:
  explicit LogicalKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    NPU_CHECK(ctx.Input(0).dtype == DType::kBool, "[", Op::kName, "] expected bool, got ", NameOf(ctx.Input(0).dtype));
    internal::LaunchBinary(ctx, Op::kName, DType::kBool, &internal::BinaryLoop<Op, uint8_t>, kCheapGrain);
  }
};

class EqualKernel : public BinaryKernel<Equal> {
 public:
  explicit EqualKernel(const KernelInfo& info) : BinaryKernel(info), logical_(info) {}
  void Compute(OpContext& ctx) const override {
    if (ctx.Input(0).dtype == DType::kBool) {
      logical_.Compute(ctx);
    } else {
      BinaryKernel::Compute(ctx);
    }
  }

 private:
  LogicalKernel<EqualBool> logical_;
};

template <class K>
OpDef PredicateDef(const char* type, int since, int until, DTypeSet inputs) {
  return {
      .type = type,
      .since = since,
      .until = until,
      .inputs = {Input("A", inputs), Input("B", inputs)},
      .outputs = {Output("C", kBool)},
      .shape_arithmetic = ShapeArithmetic::kElementwise,
      .make = MakeKernel<K>,
  };
}

NPU_ONNX_KERNEL(PredicateDef<EqualKernel>("Equal", 7, 19, kFixedWidth));
NPU_ONNX_KERNEL(PredicateDef<BinaryKernel<Less>>("Less", 7, 13, kNumeric));
NPU_ONNX_KERNEL(PredicateDef<BinaryKernel<LessOrEqual>>("LessOrEqual", 12, 16, kNumeric));
NPU_ONNX_KERNEL(PredicateDef<BinaryKernel<Greater>>("Greater", 7, 13, kNumeric));
NPU_ONNX_KERNEL(PredicateDef<BinaryKernel<GreaterOrEqual>>("GreaterOrEqual", 12, 16, kNumeric));
NPU_ONNX_KERNEL(PredicateDef<LogicalKernel<And>>("And", 7, 7, kBool));
NPU_ONNX_KERNEL(PredicateDef<LogicalKernel<Or>>("Or", 7, 7, kBool));
NPU_ONNX_KERNEL(PredicateDef<LogicalKernel<Xor>>("Xor", 7, 7, kBool));

}  // namespace
}  // namespace npu
