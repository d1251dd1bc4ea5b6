// How torch.amp.GradScaler updates gradients and its scale.
#include <atomic>
#include <cmath>

#include "ep/kernels/op_check.h"
#include "ep/kernels/optimizer/update.h"

namespace npu::optimizer {
namespace {

template <class T>
T* NumberAt(const char* op, const char* name, const TensorView& view) {
  NPU_OP_CHECK(op, view && view.dtype == DTypeOf<T>::value && view.elements() == 1, "expected ", name, " to be one ",
               NameOf(DTypeOf<T>::value), ", got ", NameOf(view.dtype), view.shape);
  return view.as<T>();
}

// grad *= inv_scale; found_inf = 1 if any element was infinite or NaN.
class UnscaleKernel final : public Kernel {
 public:
  explicit UnscaleKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView grad = ctx.Input(0);
    float* const found_inf = NumberAt<float>("Unscale", "found_inf", ctx.Input(1));
    const float* const inv_scale = NumberAt<float>("Unscale", "inv_scale", ctx.Input(2));
    const int64_t n = grad.elements();
    DispatchTypes("Unscale", grad.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      if (n == 0) return;
      ctx.Launch("Unscale", [data = grad.as<T>(), n, found_inf, inv_scale] {
        Decide(*inv_scale != 1, [&](auto scales) {
          ParallelFor(n, kMathGrain, [data, found_inf, by = *inv_scale](int64_t begin, int64_t end) {
            if (Run<decltype(scales)::value>(data + begin, end - begin, by)) return;
            std::atomic_ref(*found_inf).store(1, std::memory_order_relaxed);
          });
        });
      });
    });
  }

 private:
  // Whether all elements were finite: x - x is 0 only for finite x.
  template <bool scales, class T>
  static bool Run(T* data, int64_t n, float by) {
    int infinite = 0;
#pragma omp simd reduction(| : infinite)
    for (int64_t i = 0; i < n; ++i) {
      const auto x = Load(data[i]);
      infinite |= x - x != 0;
      if constexpr (scales) Store(data[i], x * by);
    }
    return infinite == 0;
  }
};

// The scale shrinks if an infinity was found, and grows if none was found for growth_interval steps.
class UpdateScaleKernel final : public Kernel {
 public:
  explicit UpdateScaleKernel(const KernelInfo& info)
      : growth_(info.attributes.Float("growth_factor")),
        backoff_(info.attributes.Float("backoff_factor")),
        interval_(info.attributes.Int("growth_interval")) {}
  void Compute(OpContext& ctx) const override {
    ctx.Launch("UpdateScale", [scale = NumberAt<float>("UpdateScale", "current_scale", ctx.Input(0)),
                               steps = NumberAt<int32_t>("UpdateScale", "growth_tracker", ctx.Input(1)),
                               found_inf = NumberAt<float>("UpdateScale", "found_inf", ctx.Input(2)), growth = growth_,
                               backoff = backoff_, interval = interval_] {
      if (*found_inf != 0) {
        *scale = static_cast<float>(*scale * backoff);
        *steps = 0;
      } else if (int64_t{*steps} + 1 == interval) {
        const auto grown = static_cast<float>(*scale * growth);
        if (std::isfinite(grown)) *scale = grown;
        *steps = 0;
      } else {
        ++*steps;
      }
    });
  }

 private:
  double growth_, backoff_;
  int64_t interval_;
};

constexpr DTypeSet kFloat32{DType::kFloat32};

NPU_ONNX_KERNEL(UpdateDef("Unscale",
                          {Input("grad", kAllFloats), Input("found_inf", kFloat32), Input("inv_scale", kFloat32)}, {},
                          MakeKernel<UnscaleKernel>));
NPU_ONNX_KERNEL(UpdateDef("UpdateScale",
                          {Input("current_scale", kFloat32), Input("growth_tracker", {DType::kInt32}),
                           Input("found_inf", kFloat32)},
                          {FloatAttribute("growth_factor", 2.0), FloatAttribute("backoff_factor", 0.5),
                           IntAttribute("growth_interval", 2000)},
                          MakeKernel<UpdateScaleKernel>));

}  // namespace
}  // namespace npu::optimizer
