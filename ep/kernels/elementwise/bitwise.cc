// BitwiseAnd, BitwiseOr, BitwiseXor and BitwiseNot, of integers.
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

}  // namespace
}  // namespace npu
