// torch's elementwise functions as operators of the kernel library: ONNX's where it has one, else torch's own.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {

// An operator with its scalar attributes.
struct Function {
  using Numbers = std::vector<std::pair<const char*, double>>;

  const char* type;
  const char* domain;
  Numbers numbers;

  bool Takes(at::ScalarType dtype) const { return KernelCall(type, domain).Takes(0, dtype); }
};
inline Function Onnx(const char* type, Function::Numbers numbers = {}) { return {type, "", std::move(numbers)}; }
inline Function Aten(const char* type, Function::Numbers numbers = {}) {
  return {type, "npu.aten", std::move(numbers)};
}

// out = function(inputs), with the inputs converted to `dtype`, which the function supports.
at::Tensor& FunctionInto(KernelCall call, const Function::Numbers& numbers, at::ScalarType dtype,
                         std::initializer_list<at::Tensor> inputs, at::Tensor& out);
inline at::Tensor& FunctionInto(const Function& function, at::ScalarType dtype,
                                std::initializer_list<at::Tensor> inputs, at::Tensor& out) {
  return FunctionInto(KernelCall(function.type, function.domain), function.numbers, dtype, inputs, out);
}

// The same, with shape and dtype from torch's `Meta` for `args`. A dtype that the function does not support falls back.
template <class Meta, class Op, class... Args>
at::Tensor& Elementwise(const Function& function, std::initializer_list<at::Tensor> inputs, at::Tensor& out,
                        const Args&... args) {
  const at::ScalarType dtype = InferElementwise<Meta>(out, args...);
  KernelCall call(function.type, function.domain);
  if (!call.Takes(0, dtype)) return FallBack<Op>(args..., out);
  return FunctionInto(std::move(call), function.numbers, dtype, inputs, out);
}

// The same into a new tensor of the shape and dtype of `like`, which must be of real floats.
at::Tensor FunctionOf(const char* op, const Function& function, const at::Tensor& like,
                      std::initializer_list<at::Tensor> inputs);

}  // namespace npu::aten
