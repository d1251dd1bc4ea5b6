// Divisions that round the quotient: down, like Python's //, or toward zero, like C's /.
#include <ATen/ops/div_meta.h>
#include <ATen/ops/div_ops.h>
#include <torch/library.h>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor& DivModeOut(const at::Tensor& a, const at::Tensor& b, std::optional<c10::string_view> mode,
                       at::Tensor& out) {
  if (!mode) return at::_ops::div_out::call(a, b, out);
  const at::ScalarType dtype = InferElementwise<at::meta::structured_div_Tensor_mode>(out, a, b, mode);
  const Function divide = Aten(*mode == "floor" ? "FloorDivide" : "TruncateDivide");
  // A scalar keeps its precision: 72.1875 / 72.2 is less than 1, although 72.2 is 72.1875 in float16.
  const at::ScalarType computed = ComputeType(dtype, a, b);
  if (!divide.Takes(computed)) return FallBack<at::_ops::div_out_mode>(a, b, mode, out);
  return FunctionInto(divide, computed, {a, b}, out);
}

at::Tensor& FloorDivideOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return at::_ops::div_out_mode::call(a, b, "floor", out);
}
at::Tensor FloorDivide(const at::Tensor& a, const at::Tensor& b) {
  return at::_ops::div_Tensor_mode::call(a, b, "floor");
}
at::Tensor& FloorDivideInPlace(at::Tensor& a, const at::Tensor& b) {
  return at::_ops::div__Tensor_mode::call(a, b, "floor");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("div.out_mode", &DivModeOut);
  m.impl("floor_divide", &FloorDivide);
  m.impl("floor_divide.out", &FloorDivideOut);
  m.impl("floor_divide_.Tensor", &FloorDivideInPlace);
}

}  // namespace
}  // namespace npu::aten
