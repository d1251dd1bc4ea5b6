// _npu_dropout(self; p, seed) -> y, mask. The semantics are in npu_dropout.py.
#include "contrib_ops/random/npu_dropout.h"

#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/random/dropout_mask.h"

namespace npu {
namespace {

using In = nodes::NPUDropout::In;
using Out = nodes::NPUDropout::Out;

constexpr const char* kOp = "_npu_dropout";

class DropoutKernel final : public Kernel {
 public:
  explicit DropoutKernel(const KernelInfo& info)
      // Rounded to float32, as a node stores it, also where torch passes more digits.
      : drop_(static_cast<float>(info.attributes.Float("p"))),
        seed_(static_cast<uint64_t>(info.attributes.Int("seed"))) {
    NPU_OP_CHECK(kOp, drop_ >= 0 && drop_ <= 1, "expected p in [0, 1], got ", drop_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, x, "expected the tensor self");
    const int64_t n = x.elements(), units = DropoutUnits(n);
    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    const TensorView mask = ctx.Output(Out::mask, DType::kUInt8, Shape{units * kDropoutUnitBytes});
    if (n == 0) return;
    auto* bits = mask ? mask.as<uint8_t>()
                      : static_cast<uint8_t*>(ctx.Workspace(static_cast<size_t>(units * kDropoutUnitBytes)));
    LaunchDropoutMask(ctx, kOp, drop_, seed_, bits, units);
    if (!y) return;
    const float scale = drop_ < 1 ? static_cast<float>(1.0 / (1.0 - static_cast<double>(drop_))) : 0.0f;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [=] {
        ParallelFor(n, 16384, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const bool kept = (bits[i / 8] >> (i % 8) & 1) != 0;
            y.as<T>()[i] = kept ? FromFloat<T>(ToFloat(x.as<T>()[i]) * scale) : FromFloat<T>(0.0f);
          }
        });
      });
    });
  }

 private:
  float drop_;
  uint64_t seed_;
};

NPU_KERNEL(NPUDropout, DropoutKernel);

}  // namespace
}  // namespace npu
