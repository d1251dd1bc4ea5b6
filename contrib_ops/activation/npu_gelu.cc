// npu_gelu(self; approximate) -> y. The semantics are in npu_gelu.py.
#include "ep/kernels/activation/activations.h"
#include "ep/kernels/activation/pointwise.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "npu_gelu";

class GeluKernel final : public Kernel {
 public:
  explicit GeluKernel(const KernelInfo& info) {
    const std::string approximate = info.attributes.String("approximate");
    NPU_OP_CHECK(kOp, approximate == "none" || approximate == "tanh", "expected approximate 'none' or 'tanh', got '",
                 approximate, "'");
    tanh_ = approximate == "tanh";
  }

  void Compute(OpContext& ctx) const override {
    if (tanh_) {
      LaunchPointwise(ctx, kOp, [](float x) { return GeluTanh(x); });
    } else {
      LaunchPointwise(ctx, kOp, [](float x) { return GeluErf(x); });
    }
  }

 private:
  bool tanh_ = false;
};

NPU_KERNEL(NPUGeluV2, GeluKernel);

}  // namespace
}  // namespace npu
