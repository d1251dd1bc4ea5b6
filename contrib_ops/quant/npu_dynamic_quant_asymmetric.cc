// npu_dynamic_quant_asymmetric(input, smooth_scales, group_index; ..) -> y, scale, offset. The semantics are in
// npu_dynamic_quant_asymmetric.py.
#include "contrib_ops/quant/npu_dynamic_quant_asymmetric.h"

#include "ep/kernels/quantization/dynamic_quant.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

class DynamicQuantAsymmetricKernel final : public Kernel {
 public:
  explicit DynamicQuantAsymmetricKernel(const KernelInfo& info) : quant_("npu_dynamic_quant_asymmetric", true, info) {}

  void Compute(OpContext& ctx) const override { quant_.Compute(ctx); }

 private:
  DynamicQuant quant_;
};

NPU_KERNEL(NPUDynamicQuantV2, DynamicQuantAsymmetricKernel);

}  // namespace
}  // namespace npu
