// Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And, Or, Xor. A comparison with NaN is false.
#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

using FixedWidthTypes = Types<float, Float16, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
                              uint32_t, uint64_t, Truth>;

template <Text name, class List = NumericTypes, class F>
OpDef Predicate(F f, Versions versions) {
  return ForShapes(OnnxFunction<name, List, kCheapGrain>(f, versions, {"A", "B"}, "C"), ShapeArithmetic::kElementwise);
}

NPU_ONNX_KERNEL(Predicate<"Equal", FixedWidthTypes>([](auto a, auto b) { return a == b; }, {7, 19}));
NPU_ONNX_KERNEL(Predicate<"Less">([](auto a, auto b) { return a < b; }, {7, 13}));
NPU_ONNX_KERNEL(Predicate<"LessOrEqual">([](auto a, auto b) { return a <= b; }, {12, 16}));
NPU_ONNX_KERNEL(Predicate<"Greater">([](auto a, auto b) { return a > b; }, {7, 13}));
NPU_ONNX_KERNEL(Predicate<"GreaterOrEqual">([](auto a, auto b) { return a >= b; }, {12, 16}));

NPU_ONNX_KERNEL(Predicate<"And", Types<Truth>>([](bool a, bool b) { return a && b; }, {7, 7}));
NPU_ONNX_KERNEL(Predicate<"Or", Types<Truth>>([](bool a, bool b) { return a || b; }, {7, 7}));
NPU_ONNX_KERNEL(Predicate<"Xor", Types<Truth>>([](bool a, bool b) { return a != b; }, {7, 7}));

}  // namespace
}  // namespace npu
