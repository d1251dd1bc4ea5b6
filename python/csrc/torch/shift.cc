// Shifts of integers.
#include <ATen/ops/bitwise_left_shift_meta.h>
#include <ATen/ops/bitwise_left_shift_ops.h>
#include <ATen/ops/bitwise_right_shift_meta.h>
#include <ATen/ops/bitwise_right_shift_ops.h>
#include <torch/library.h>

#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor& LeftShiftOut(const at::Tensor& self, const at::Tensor& by, at::Tensor& out) {
  return Elementwise<at::meta::structured_bitwise_left_shift_Tensor, at::_ops::bitwise_left_shift_Tensor_out>(
      Aten("LeftShift"), {self, by}, out, self, by);
}
at::Tensor& RightShiftOut(const at::Tensor& self, const at::Tensor& by, at::Tensor& out) {
  return Elementwise<at::meta::structured_bitwise_right_shift_Tensor, at::_ops::bitwise_right_shift_Tensor_out>(
      Aten("RightShift"), {self, by}, out, self, by);
}

// Python's operators.
template <class By>
at::Tensor ShiftLeft(const at::Tensor& self, const By& by) {
  return self.bitwise_left_shift(by);
}
template <class By>
at::Tensor& ShiftLeftInPlace(at::Tensor& self, const By& by) {
  return self.bitwise_left_shift_(by);
}
template <class By>
at::Tensor ShiftRight(const at::Tensor& self, const By& by) {
  return self.bitwise_right_shift(by);
}
template <class By>
at::Tensor& ShiftRightInPlace(at::Tensor& self, const By& by) {
  return self.bitwise_right_shift_(by);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("bitwise_left_shift.Tensor_out", &LeftShiftOut);
  m.impl("bitwise_right_shift.Tensor_out", &RightShiftOut);
  m.impl("__lshift__.Tensor", &ShiftLeft<at::Tensor>);
  m.impl("__lshift__.Scalar", &ShiftLeft<c10::Scalar>);
  m.impl("__ilshift__.Tensor", &ShiftLeftInPlace<at::Tensor>);
  m.impl("__ilshift__.Scalar", &ShiftLeftInPlace<c10::Scalar>);
  m.impl("__rshift__.Tensor", &ShiftRight<at::Tensor>);
  m.impl("__rshift__.Scalar", &ShiftRight<c10::Scalar>);
  m.impl("__irshift__.Tensor", &ShiftRightInPlace<at::Tensor>);
  m.impl("__irshift__.Scalar", &ShiftRightInPlace<c10::Scalar>);
}

}  // namespace
}  // namespace npu::aten
