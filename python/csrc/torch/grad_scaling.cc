// The updates of torch.amp.GradScaler to gradients and to its scale, without a wait on the host.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

void CheckNumber(const char* op, const char* name, const at::Tensor& t, at::ScalarType dtype) {
  TORCH_CHECK(t.is_privateuseone() && t.numel() == 1 && t.scalar_type() == dtype, "[", op, "] expected ", name,
              " to be one ", dtype, " on an npu, got ", t.numel(), " of ", t.scalar_type(), " on ", t.device());
}

// grads *= inv_scale; found_inf = 1 if one of them was infinite or NaN.
void UnscaleAndCheck(at::TensorList grads, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  constexpr const char* kOp = "_amp_foreach_non_finite_check_and_unscale_";
  CheckNumber(kOp, "found_inf", found_inf, at::kFloat);
  CheckNumber(kOp, "inv_scale", inv_scale, at::kFloat);
  for (const at::Tensor& grad : grads) {
    TORCH_CHECK(grad.layout() == at::kStrided && KernelCall("Unscale", "npu.aten").Takes(0, grad.scalar_type()), "[",
                kOp, "] expected dense gradients of float16, bfloat16, float32 or float64, got ", grad.layout(), " ",
                grad.scalar_type());
    TORCH_CHECK(grad.device() == found_inf.device() && grad.device() == inv_scale.device(), "[", kOp,
                "] expected gradients, found_inf and inv_scale on one device, got ", grad.device(), ", ",
                found_inf.device(), " and ", inv_scale.device());
    if (grad.numel() == 0) continue;
    // The order of the elements does not matter, as long as each is visited once.
    const at::Tensor dense = grad.is_non_overlapping_and_dense() ? grad : grad.contiguous();
    KernelCall("Unscale", "npu.aten").In(dense, {dense.numel()}).In(found_inf).In(inv_scale).Run(0);
    if (!dense.is_same(grad)) grad.copy_(dense);
  }
}

at::Tensor& UpdateScale(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                        double growth_factor, double backoff_factor, int64_t growth_interval) {
  constexpr const char* kOp = "_amp_update_scale_";
  CheckNumber(kOp, "current_scale", scale, at::kFloat);
  CheckNumber(kOp, "growth_tracker", growth_tracker, at::kInt);
  CheckNumber(kOp, "found_inf", found_inf, at::kFloat);
  KernelCall("UpdateScale", "npu.aten")
      .In(scale)
      .In(growth_tracker)
      .In(found_inf)
      .Set("growth_factor", growth_factor)
      .Set("backoff_factor", backoff_factor)
      .Set("growth_interval", growth_interval)
      .Run(0);
  return scale;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", &UnscaleAndCheck);
  m.impl("_amp_update_scale_", &UpdateScale);
}

}  // namespace
}  // namespace npu::aten
