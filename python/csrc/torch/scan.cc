// Cumulative products, logarithms of sums, max and min along one dimension.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_cummax_helper_ops.h>
#include <ATen/ops/_cummin_helper_ops.h>
#include <ATen/ops/_logcumsumexp_ops.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor& CumprodOut(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Infer<at::meta::structured_cumprod>(out, self, dim, dtype);
  if (out.numel() == 0) return out;
  KernelCall call("CumProd");
  at::ScalarType type = out.scalar_type();
  // ONNX has no CumProd of small integers. Products in int64 have the same low bits.
  if (!call.Takes(0, type) && at::isIntegralType(type, /*includeBool=*/false)) type = at::kLong;
  if (!call.Takes(0, type)) return FallBack<at::_ops::cumprod_out>(self, dim, dtype, out);
  if (self.dim() == 0) return out.copy_(self);
  call.In(Dense(Dense(self, out.scalar_type()), type)).HostScalar(at::maybe_wrap_dim(dim, self.dim())).Into(out);
  return out;
}

// The cumulative max or min with its positions; nullopt if the kernel does not support the dtype.
template <bool maximum>
std::optional<std::tuple<at::Tensor, at::Tensor>> RunningExtremes(const at::Tensor& self, int64_t dim) {
  KernelCall call(maximum ? "CumMax" : "CumMin", "npu.aten");
  const bool truth = self.scalar_type() == at::kBool;
  if (!truth && !call.Takes(0, self.scalar_type())) return std::nullopt;
  const at::Tensor x = truth ? Dense(self).view(at::kByte) : Dense(self);
  const at::Tensor line = x.dim() == 0 ? x.view({1}) : x;
  const std::vector<at::Tensor> results = call.In(line).Set("axis", at::maybe_wrap_dim(dim, self.dim())).Run(2);
  return std::tuple(results[0].view(self.scalar_type()).view(self.sizes()), results[1].view(self.sizes()));
}

template <class Op, bool maximum>
void RunningExtremesInto(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  const auto results = RunningExtremes<maximum>(self, dim);
  if (!results) return FallBack<Op>(self, values, indices, dim);
  values.copy_(std::get<0>(*results));
  indices.copy_(std::get<1>(*results));
}

// torch's own form allocates two tensors for the helper to write; here they are the kernel's outputs.
template <class Op, bool maximum>
std::tuple<at::Tensor, at::Tensor> NewRunningExtremes(const at::Tensor& self, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (auto results = RunningExtremes<maximum>(self, dim)) return *results;
  at::Tensor values = at::empty_like(self, at::MemoryFormat::Contiguous);
  at::Tensor indices = at::empty_like(self, self.options().dtype(at::kLong), at::MemoryFormat::Contiguous);
  FallBack<Op>(self, values, indices, dim);
  return {values, indices};
}

at::Tensor LogCumSumExp(const at::Tensor& self, int64_t dim) {
  KernelCall call("LogCumSumExp", "npu.aten");
  if (!call.Takes(0, self.scalar_type())) return FallBack<at::_ops::_logcumsumexp>(self, dim);
  const at::Tensor x = Dense(self);
  call.In(x.dim() == 0 ? x.view({1}) : x).Set("axis", at::maybe_wrap_dim(dim, self.dim()));
  return call.One().view(self.sizes());
}
at::Tensor& LogCumSumExpOut(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.copy_(LogCumSumExp(self, dim));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("cumprod.out", &CumprodOut);
  m.impl("_logcumsumexp", &LogCumSumExp);
  m.impl("_logcumsumexp.out", &LogCumSumExpOut);
  m.impl("_cummax_helper", &RunningExtremesInto<at::_ops::_cummax_helper, true>);
  m.impl("_cummin_helper", &RunningExtremesInto<at::_ops::_cummin_helper, false>);
  m.impl("cummax", &NewRunningExtremes<at::_ops::_cummax_helper, true>);
  m.impl("cummin", &NewRunningExtremes<at::_ops::_cummin_helper, false>);
}

}  // namespace
}  // namespace npu::aten
