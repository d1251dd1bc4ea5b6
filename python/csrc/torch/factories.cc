// Tensors created from scalars alone.
#include <ATen/ops/linspace.h>
#include <ATen/ops/linspace_ops.h>
#include <ATen/ops/logspace_ops.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tril_indices.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor& EyeOut(int64_t n, int64_t m, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  out.resize_({n, m});
  out.zero_();
  if (out.numel() > 0) out.diagonal().fill_(1);
  return out;
}
at::Tensor& EyeSquareOut(int64_t n, at::Tensor& out) { return EyeOut(n, n, out); }

// `value` rounded to `dtype`; throws if `dtype` cannot hold it.
double Held(const c10::Scalar& value, at::ScalarType dtype) {
  return at::scalar_tensor(value, at::TensorOptions(dtype)).item<double>();
}

at::Tensor& LinspaceOut(const c10::Scalar& start, const c10::Scalar& end, int64_t steps, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  const DType dtype = ToDType(out.scalar_type());
  if (!kNumeric.Contains(dtype)) return FallBack<at::_ops::linspace_out>(start, end, steps, out);
  if (out.numel() != steps) out.resize_({steps});
  if (steps == 0) return out;
  if (steps == 1) return out.fill_(start);
  KernelCall("Linspace", "npu.aten")
      .HostScalar(Held(start, out.scalar_type()))
      .HostScalar(Held(end, out.scalar_type()))
      .HostScalar(steps)
      .Set("dtype", static_cast<int64_t>(dtype))
      .Into(out);
  return out;
}

// Powers of `base`; of integers with exponents between the truncated bounds.
at::Tensor& LogspaceOut(const c10::Scalar& start, const c10::Scalar& end, int64_t steps, double base, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (!kNumeric.Contains(ToDType(out.scalar_type())))
    return FallBack<at::_ops::logspace_out>(start, end, steps, base, out);
  if (out.numel() != steps) out.resize_({steps});
  if (steps == 0) return out;
  const at::Tensor exponents = at::linspace(Held(start, out.scalar_type()), Held(end, out.scalar_type()), steps,
                                            out.options().dtype(at::kDouble));
  return out.copy_(at::pow(base, exponents).view(out.sizes()));
}

// A few numbers, computed on the host. Pinned, so that a capture can keep them.
template <auto make>
at::Tensor TriangleIndices(int64_t rows, int64_t columns, int64_t offset, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const at::Tensor host = make(rows, columns, offset, at::TensorOptions(dtype.value_or(at::kLong)).device(at::kCPU));
  return host.pin_memory().to(device.value_or(DeviceAt(CurrentDevice())), host.scalar_type(), /*non_blocking=*/true);
}
at::Tensor Lower(int64_t rows, int64_t columns, int64_t offset, at::TensorOptions options) {
  return at::tril_indices(rows, columns, offset, options);
}
at::Tensor Upper(int64_t rows, int64_t columns, int64_t offset, at::TensorOptions options) {
  return at::triu_indices(rows, columns, offset, options);
}

// The zeros of forward-mode derivatives, in memory like any others.
at::Tensor ZerosOfDerivatives(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                              std::optional<at::Layout> layout, std::optional<at::Device> device,
                              std::optional<bool> pinned) {
  return at::zeros(size, dtype, layout, device.value_or(DeviceAt(CurrentDevice())), pinned);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("tril_indices", &TriangleIndices<&Lower>);
  m.impl("triu_indices", &TriangleIndices<&Upper>);
  m.impl("_efficientzerotensor", &ZerosOfDerivatives);
  m.impl("eye.out", &EyeSquareOut);
  m.impl("eye.m_out", &EyeOut);
  m.impl("linspace.out", &LinspaceOut);
  m.impl("logspace.out", &LogspaceOut);
}

}  // namespace
}  // namespace npu::aten
