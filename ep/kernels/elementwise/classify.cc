// Not, IsNaN, IsInf.
#include <limits>

#include "ep/kernels/elementwise/function.h"

namespace npu {
namespace {

NPU_ONNX_KERNEL(OnnxFunction<"IsNaN", FloatTypes, kCheapGrain>([](auto x) { return x != x; }, {9, 20}, {"X"}, "Y"));
NPU_ONNX_KERNEL(OnnxFunction<"IsInf", FloatTypes, kCheapGrain>(
    [](auto x, auto negative, auto positive) {
      constexpr auto kInfinity = std::numeric_limits<decltype(x)>::infinity();
      return (positive != 0 && x == kInfinity) || (negative != 0 && x == -kInfinity);
    },
    {10, 20}, {"X"}, "Y", {IntAttribute("detect_negative", 1), IntAttribute("detect_positive", 1)}));
NPU_ONNX_KERNEL(ForShapes(OnnxFunction<"Not", Types<Truth>, kCheapGrain>([](bool x) { return !x; }, {1, 1}, {"X"}, "Y"),
                          ShapeArithmetic::kFirst));

}  // namespace
}  // namespace npu
