// What torch.amp.GradScaler does to gradients and to its scale, without a wait of the host.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>

#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

void CheckNumber(const char* op, const char* name, const at::Tensor& t, at::ScalarType dtype) {
  TORCH_CHECK(t.is_privateuseone() && t.numel() == 1 && t.scalar_type() == dtype, "[", op, "] expected ", name,
              " to be one ", dtype, " on an npu, got ", t.numel(), " of ", t.scalar_type(), " on ", t.device());
}

// grads *= inv_scale; found_inf = 1 where one of them was infinite or NaN.
void UnscaleAndCheck(at::TensorList grads, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  constexpr const char* kOp = "_amp_foreach_non_finite_check_and_unscale_";
  CheckNumber(kOp, "found_inf", found_inf, at::kFloat);
  CheckNumber(kOp, "inv_scale", inv_scale, at::kFloat);
  for (const at::Tensor& grad : grads) {
    TORCH_CHECK(grad.layout() == at::kStrided && IsRealFloat(grad.scalar_type()), "[", kOp,
                "] expected dense gradients of float16, bfloat16, float32 or float64, got ", grad.layout(), " ",
                grad.scalar_type());
    TORCH_CHECK(grad.device() == found_inf.device() && grad.device() == inv_scale.device(), "[", kOp,
                "] expected gradients, found_inf and inv_scale on one device, got ", grad.device(), ", ",
                found_inf.device(), " and ", inv_scale.device());
    if (grad.numel() == 0) continue;
    // Any order of the elements will do, as long as each is met once.
    const at::Tensor dense = grad.is_non_overlapping_and_dense() ? grad : grad.contiguous();
    DispatchNumbers(grad.scalar_type(), [&]<class T>(T) {
      const auto unscale = [data = static_cast<T*>(dense.mutable_data_ptr()), n = dense.numel(),
                            found = static_cast<float*>(found_inf.mutable_data_ptr()),
                            scale = static_cast<const float*>(inv_scale.const_data_ptr())] {
        constexpr int64_t kGrain = 4096;
        const float by = *scale;
        ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
          bool finite = true;
          for (int64_t i = begin; i < end; ++i) {
            const auto x = static_cast<Real<T>>(data[i]);
            finite &= std::isfinite(x);
            data[i] = static_cast<T>(by == 1 ? x : x * by);
          }
          if (!finite) std::atomic_ref(*found).store(1, std::memory_order_relaxed);
        });
      };
      StreamOf(dense).Launch("amp_unscale", unscale);
    });
    if (!dense.is_same(grad)) grad.copy_(dense);
  }
}

at::Tensor& UpdateScale(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                        double growth_factor, double backoff_factor, int64_t growth_interval) {
  constexpr const char* kOp = "_amp_update_scale_";
  CheckNumber(kOp, "current_scale", scale, at::kFloat);
  CheckNumber(kOp, "growth_tracker", growth_tracker, at::kInt);
  CheckNumber(kOp, "found_inf", found_inf, at::kFloat);
  StreamOf(scale).Launch(
      "amp_update_scale",
      [s = static_cast<float*>(scale.mutable_data_ptr()), steps = static_cast<int*>(growth_tracker.mutable_data_ptr()),
       found = static_cast<const float*>(found_inf.const_data_ptr()), growth_factor, backoff_factor, growth_interval] {
        if (*found != 0) {
          *s = static_cast<float>(*s * backoff_factor);
          *steps = 0;
        } else if (*steps + 1 == growth_interval) {
          const auto grown = static_cast<float>(*s * growth_factor);
          if (std::isfinite(grown)) *s = grown;
          *steps = 0;
        } else {
          ++*steps;
        }
      });
  return scale;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", &UnscaleAndCheck);
  m.impl("_amp_update_scale_", &UpdateScale);
}

}  // namespace
}  // namespace npu::aten
