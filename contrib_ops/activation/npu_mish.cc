// npu_mish(self) -> y. The semantics are in npu_mish.py.
#include "ep/kernels/activation/activations.h"
#include "ep/kernels/activation/pointwise.h"

namespace npu {
namespace {

class MishKernel final : public Kernel {
 public:
  explicit MishKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    LaunchPointwise(ctx, "npu_mish", [](float x) { return Mish(x); });
  }
};

NPU_KERNEL(NPUMish, MishKernel);

}  // namespace
}  // namespace npu
