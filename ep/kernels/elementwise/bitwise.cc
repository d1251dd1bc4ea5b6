// BitwiseAnd, BitwiseOr, BitwiseXor and BitwiseNot, of integers.
#include "ep/kernels/elementwise/binary.h"
#include "ep/kernels/elementwise/unary.h"

namespace npu {
namespace {

using IntegerTypes = Types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;

struct BitwiseAnd {
  static constexpr const char* kName = "BitwiseAnd";
  using Types = IntegerTypes;
  template <class C>
  static C Apply(C a, C b) {
    return static_cast<C>(a & b);
  }
};
struct BitwiseOr {
  static constexpr const char* kName = "BitwiseOr";
  using Types = IntegerTypes;
  template <class C>
  static C Apply(C a, C b) {
    return static_cast<C>(a | b);
  }
};
struct BitwiseXor {
  static constexpr const char* kName = "BitwiseXor";
  using Types = IntegerTypes;
  template <class C>
  static C Apply(C a, C b) {
    return static_cast<C>(a ^ b);
  }
};
struct BitwiseNot {
  static constexpr const char* kName = "BitwiseNot";
  static constexpr int64_t kGrain = kCheapGrain;
  using Types = IntegerTypes;
  template <class C>
  C operator()(C x) const {
    return static_cast<C>(~x);
  }
};

NPU_ONNX_KERNEL(ArithmeticDef<BitwiseAnd>(18, 18));
NPU_ONNX_KERNEL(ArithmeticDef<BitwiseOr>(18, 18));
NPU_ONNX_KERNEL(ArithmeticDef<BitwiseXor>(18, 18));
NPU_ONNX_KERNEL(UnaryDef<BitwiseNot>(18, 18));

}  // namespace
}  // namespace npu
