// npu_trans_quant_param(scale, offset; round_mode) -> y. The semantics are in npu_trans_quant_param.py.
#include "contrib_ops/quant/npu_trans_quant_param.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/packed_scale.h"
#include "ep/kernels/quantization/rounding.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUTransQuantParam::In;
using Out = nodes::NPUTransQuantParam::Out;

constexpr const char* kOp = "npu_trans_quant_param";

class TransQuantParamKernel final : public Kernel {
 public:
  explicit TransQuantParamKernel(const KernelInfo& info) {
    const int64_t mode = info.attributes.Int("round_mode", 0);
    NPU_OP_CHECK(kOp, mode == 0 || mode == 1, "expected round_mode 0 or 1, got ", mode);
    rounds_ = mode == 1;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView scale = ctx.Input(In::scale), offset = ctx.Input(In::offset);
    NPU_OP_CHECK(kOp, scale && (scale.shape.rank() == 1 || scale.shape.rank() == 2),
                 "expected scale of rank 1 or 2, got ", scale.shape);
    Shape shape = scale.shape;
    if (offset) {
      const bool one_of_many = shape.rank() == 1 && offset.shape.rank() == 1 && (shape[0] == 1 || offset.shape[0] == 1);
      NPU_OP_CHECK(kOp, offset.shape == shape || one_of_many, "expected offset of scale's shape ", shape,
                   ", or one of both [1], got ", offset.shape);
      if (shape[0] == 1) shape = offset.shape;
    }
    const TensorView y = ctx.Output(Out::y, DType::kInt64, shape);
    ctx.Launch(kOp, [scales = scale.as<const float>(), offsets = offset.as<const float>(),
                     has_offset = static_cast<bool>(offset), scale_step = scale.elements() == 1 ? 0 : 1,
                     offset_step = offset.elements() == 1 ? 0 : 1, rounds = rounds_, count = y.elements(),
                     out = y.as<int64_t>()] {
      ParallelFor(count, kSerialElements, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float value = scales[i * scale_step];
          out[i] = has_offset ? PackScale(value, rounds, RoundSaturated(offsets[i * offset_step], -256.0f, 255.0f))
                              : PackScale(value, rounds);
        }
      });
    });
  }

 private:
  bool rounds_;
};

NPU_KERNEL(NPUTransQuantParam, TransQuantParamKernel);

}  // namespace
}  // namespace npu
