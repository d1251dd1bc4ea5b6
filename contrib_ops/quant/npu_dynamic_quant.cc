// npu_dynamic_quant(input, smooth_scales, group_index; ..) -> y, scale. The semantics are in npu_dynamic_quant.py.
#include "contrib_ops/quant/npu_dynamic_quant.h"

#include "ep/kernels/quantization/dynamic_quant.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

class DynamicQuantKernel final : public Kernel {
 public:
  explicit DynamicQuantKernel(const KernelInfo& info) : quant_("npu_dynamic_quant", false, info) {}

  void Compute(OpContext& ctx) const override { quant_.Compute(ctx); }

 private:
  DynamicQuant quant_;
};

NPU_KERNEL(NPUDynamicQuant, DynamicQuantKernel);

}  // namespace
}  // namespace npu
