// npu_scaled_masked_softmax(x, mask; scale, fixed_triu_mask) -> y. The semantics are in npu_scaled_masked_softmax.py.
#include "contrib_ops/attention/npu_scaled_masked_softmax.h"

#include "ep/kernels/broadcast_rows.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUScaledMaskedSoftmax::In;
using Out = nodes::NPUScaledMaskedSoftmax::Out;

constexpr const char* kOp = "npu_scaled_masked_softmax";
constexpr float kMasked = -10000.0f;

void ScaleAndMask(const float* x, float scale, const uint8_t* mask, int64_t mask_stride, float* to, int64_t n) {
  if (mask_stride == 0) {
    for (int64_t i = 0; i < n; ++i) to[i] = *mask != 0 ? kMasked : x[i] * scale;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = mask[i] != 0 ? kMasked : x[i] * scale;
  }
}

class ScaledMaskedSoftmaxKernel final : public Kernel {
 public:
  explicit ScaledMaskedSoftmaxKernel(const KernelInfo& info)
      : scale_(static_cast<float>(info.attributes.Float("scale"))) {
    NPU_OP_CHECK(kOp, !info.attributes.Bool("fixed_triu_mask"), "expected fixed_triu_mask False, got True");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), mask = ctx.Input(In::mask);
    NPU_OP_CHECK(kOp, x && mask, "expected the tensors x and mask");
    NPU_OP_CHECK(kOp, x.shape.rank() >= 1, "expected x of rank >= 1, got a scalar");
    NPU_OP_CHECK(kOp, BroadcastRows::Fits(mask.shape, x.shape), "expected a mask that broadcasts to x of shape ",
                 x.shape, ", got ", mask.shape);
    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    if (!y || x.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto type) { LaunchRows<decltype(type)>(ctx, x, mask, y); });
  }

 private:
  template <class T>
  void LaunchRows(OpContext& ctx, const TensorView& x, const TensorView& mask, const TensorView& y) const {
    const int64_t n = x.shape.back();
    const int64_t rows = x.shape.Elements(0, x.shape.rank() - 1);
    const int64_t threads = ThreadsForElements(rows * n);
    auto* scratch = static_cast<float*>(ctx.Workspace(static_cast<size_t>(threads * n) * sizeof(float)));
    ctx.Launch(kOp, [=, scale = scale_, mask_rows = BroadcastRows(mask.shape, x.shape)] {
      ForRowsOfThreads(rows, threads, [&](int64_t thread, int64_t first, int64_t last) {
        float* values = scratch + thread * n;
        for (int64_t row = first; row < last; ++row) {
          ToFloat(x.as<T>() + row * n, values, n);
          ScaleAndMask(values, scale, mask.as<const uint8_t>() + mask_rows.OffsetOf(row), mask_rows.column_stride(),
                       values, n);
          SoftmaxRow(values, n);
          FromFloat(values, y.as<T>() + row * n, n);
        }
      });
    });
  }

  float scale_;
};

NPU_KERNEL(NPUScaledMaskedSoftmax, ScaledMaskedSoftmaxKernel);

}  // namespace
}  // namespace npu
