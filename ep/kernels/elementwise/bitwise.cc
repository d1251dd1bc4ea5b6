// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift, of integers.
#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

template <Text name, class F, size_t inputs>
OpDef Bitwise(F f, const char* const (&names)[inputs], const char* output) {
  return OnnxFunction<name, IntegerTypes, kCheapGrain>(f, {18, 18}, names, output);
}

NPU_ONNX_KERNEL(Bitwise<"BitwiseAnd">([](auto a, auto b) { return a & b; }, {"A", "B"}, "C"));
NPU_ONNX_KERNEL(Bitwise<"BitwiseOr">([](auto a, auto b) { return a | b; }, {"A", "B"}, "C"));
NPU_ONNX_KERNEL(Bitwise<"BitwiseXor">([](auto a, auto b) { return a ^ b; }, {"A", "B"}, "C"));
NPU_ONNX_KERNEL(Bitwise<"BitwiseNot">([](auto x) { return ~x; }, {"X"}, "Y"));

// Shifting by the width of the type or more leaves 0.
template <class T>
constexpr T kWidth = static_cast<T>(8 * sizeof(T));

OpDef BitShift() {
  using List = Types<uint8_t, uint16_t, uint32_t, uint64_t>;
  const auto define = [](auto f) { return OnnxFunction<"BitShift", List, kCheapGrain>(f, {11, 11}, {"X", "Y"}, "Z"); };
  const OpDef left = define([](auto x, auto y) { return y < kWidth<decltype(x)> ? x << y : 0; });
  const OpDef right = define([](auto x, auto y) { return y < kWidth<decltype(x)> ? x >> y : 0; });
  OpDef def = left;
  def.attributes = {{.name = "direction", .kind = AttrDef::Kind::kString, .required = true}};
  def.make = [left, right](const KernelInfo& info) {
    const std::string direction = info.attributes.String("direction");
    NPU_CHECK(direction == "LEFT" || direction == "RIGHT", "[BitShift] expected a direction of LEFT or RIGHT, got ",
              direction);
    return (direction == "LEFT" ? left : right).make(info);
  };
  return def;
}

NPU_ONNX_KERNEL(BitShift());

// torch's shifts, also of signed integers: one by less than 0, or by the width of the type or more, shifts all bits
// out. To the right, copies of the sign come in.
template <class T>
bool ShiftsAll(T by) {
  return by < 0 || by >= kWidth<T>;
}
NPU_ONNX_KERNEL(AtenFunction<"LeftShift", IntegerTypes, kCheapGrain>(
    [](auto x, auto by) {
      using Bits = std::make_unsigned_t<decltype(x)>;
      return ShiftsAll(by) ? decltype(x){0} : static_cast<decltype(x)>(static_cast<Bits>(x) << by);
    },
    {"self", "other"}));
NPU_ONNX_KERNEL(AtenFunction<"RightShift", IntegerTypes, kCheapGrain>(
    [](auto x, auto by) { return ShiftsAll(by) ? static_cast<decltype(x)>(x < 0 ? -1 : 0) : x >> by; },
    {"self", "other"}));

}  // namespace
}  // namespace npu
