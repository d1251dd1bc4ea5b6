// torch._assert_async, and checks of values on the device that other operators make.
#include "python/csrc/torch/assertions.h"

#include <torch/library.h>

#include <string_view>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {

void AssertWithin(const at::Tensor& values, double low, double high, const std::string& message) {
  KernelCall("AssertWithin", "npu.aten").In(values).Set("low", low).Set("high", high).Set("message", message).Run(0);
}

namespace {

void AssertTrue(const at::Tensor& condition, const std::string& message) {
  TORCH_CHECK(condition.numel() != 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(condition.numel() == 1, "Boolean value of Tensor with more than one value is ambiguous");
  AssertWithin(condition.ne(0).to(at::kFloat), 1, 1, message);
}

void Assert(const at::Tensor& self) { AssertTrue(self, "Expected Tensor with single nonzero value, but got zero"); }
void AssertWithMessage(const at::Tensor& self, std::string_view message) {
  AssertTrue(self, message.empty() ? "Assertion is failed" : std::string(message));
}
at::Tensor FunctionalAssert(const at::Tensor& self, std::string_view message, const at::Tensor& token) {
  AssertWithMessage(self, message);
  return token.clone();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_assert_async", &Assert);
  m.impl("_assert_async.msg", &AssertWithMessage);
  m.impl("_functional_assert_async.msg", &FunctionalAssert);
}

}  // namespace
}  // namespace npu::aten
