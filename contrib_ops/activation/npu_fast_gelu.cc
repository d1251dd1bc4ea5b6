// npu_fast_gelu(self) -> y. The semantics are in npu_fast_gelu.py.
#include "ep/kernels/activation/activations.h"
#include "ep/kernels/activation/pointwise.h"

namespace npu {
namespace {

class FastGeluKernel final : public Kernel {
 public:
  explicit FastGeluKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    LaunchPointwise(ctx, "npu_fast_gelu", [](float x) { return FastGelu(x); });
  }
};

NPU_KERNEL(NPUFastGelu, FastGeluKernel);

}  // namespace
}  // namespace npu
