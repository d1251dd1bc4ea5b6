// npu_rotated_box_decode(self, deltas, weight) -> y. The semantics are in npu_rotated_box_decode.py.
#include "contrib_ops/detection/npu_rotated_box_decode.h"

#include "ep/kernels/detection/rotated_coder.h"

namespace npu {
namespace {

using namespace detection;  // NOLINT

constexpr const char* kOp = "npu_rotated_box_decode";

class RotatedBoxDecodeKernel final : public Kernel {
 public:
  explicit RotatedBoxDecodeKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    LaunchRotatedCoder(ctx, kOp, "deltas", [](const double* a, const double* b, const double* weight, double* y) {
      const TangentBox p(a);
      double d[5];
      for (int k = 0; k < 5; ++k) d[k] = b[k] / weight[k];
      const double x = p.x + p.width * d[0], z = p.y + p.height * d[1];
      const double half_width = p.width * std::exp(d[2]) / 2, half_height = p.height * std::exp(d[3]) / 2;
      y[0] = x - half_width;
      y[1] = z - half_height;
      y[2] = x + half_width;
      y[3] = z + half_height;
      y[4] = std::atan(p.tangent + d[4]) * 180 / M_PI;
    });
  }
};

NPU_KERNEL(NPURotatedBoxDecode, RotatedBoxDecodeKernel);

}  // namespace
}  // namespace npu
