// npu_convert_weight_to_int4pack(weight; inner_k_tiles) -> y. The semantics are in npu_convert_weight_to_int4pack.py.
#include "contrib_ops/quant/npu_convert_weight_to_int4pack.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/int4.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUConvertWeightToInt4pack::In;
using Out = nodes::NPUConvertWeightToInt4pack::Out;

constexpr const char* kOp = "npu_convert_weight_to_int4pack";

class ConvertWeightToInt4packKernel final : public Kernel {
 public:
  explicit ConvertWeightToInt4packKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView weight = ctx.Input(In::weight);
    NPU_OP_CHECK(kOp, weight && (weight.shape.rank() == 2 || weight.shape.rank() == 3),
                 "expected weight of rank 2 or 3, got ", weight.shape);
    const Shape packed = StoredShape(kOp, "weight", weight.shape, QuantizedType::kInt4);
    const TensorView y = ctx.Output(Out::y, DType::kInt32, packed);
    ctx.Launch(kOp, [from = weight.as<const int32_t>(), to = y.as<uint32_t>(), words = y.elements()] {
      ParallelFor(words, kSerialElements / 8, [&](int64_t begin, int64_t end) {
        ForEachBlock(8 * (end - begin), [&](int64_t at, int64_t count) {
          alignas(64) int8_t values[kRowBlock];
          const int32_t* block = from + 8 * begin + at;
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) values[i] = static_cast<int8_t>(block[i]);
          PackInt4(values, to + begin + at / 8, count / 8);
        });
      });
    });
  }
};

NPU_KERNEL(NPUConvertWeightToInt4pack, ConvertWeightToInt4packKernel);

}  // namespace
}  // namespace npu
