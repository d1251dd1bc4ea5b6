// npu_silu(self) -> y. The semantics are in npu_silu.py.
#include "ep/kernels/activation/activations.h"
#include "ep/kernels/activation/pointwise.h"

namespace npu {
namespace {

class SiluKernel final : public Kernel {
 public:
  explicit SiluKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    LaunchPointwise(ctx, "npu_silu", [](float x) { return Silu(x); });
  }
};

NPU_KERNEL(NPUSilu, SiluKernel);

}  // namespace
}  // namespace npu
