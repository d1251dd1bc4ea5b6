#include "python/csrc/torch/function.h"

#include <ATen/ops/empty_like.h>

namespace npu::aten {

at::Tensor& FunctionInto(KernelCall call, const Function::Numbers& numbers, at::ScalarType dtype,
                         std::initializer_list<at::Tensor> inputs, at::Tensor& out) {
  if (out.numel() == 0) return out;
  for (const at::Tensor& input : inputs) call.In(Dense(input, dtype));
  for (const auto& [name, value] : numbers) call.Set(name, value);
  call.Into(out);
  return out;
}

at::Tensor FunctionOf(const char* op, const Function& function, const at::Tensor& like,
                      std::initializer_list<at::Tensor> inputs) {
  const at::ScalarType dtype = like.scalar_type();
  TORCH_CHECK(at::isFloatingType(dtype) && function.Takes(dtype), op, " expected real floats, got ", dtype);
  at::Tensor out = at::empty_like(like);
  return FunctionInto(function, dtype, inputs, out);
}

}  // namespace npu::aten
