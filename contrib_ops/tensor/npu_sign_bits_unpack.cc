// npu_sign_bits_unpack(input; size, dtype) -> y. The semantics are in npu_sign_bits_unpack.py.
#include "contrib_ops/tensor/npu_sign_bits_unpack.h"

#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUSignBitsUnpack::In;
using Out = nodes::NPUSignBitsUnpack::Out;

constexpr const char* kOp = "npu_sign_bits_unpack";

class SignBitsUnpackKernel final : public Kernel {
 public:
  explicit SignBitsUnpackKernel(const KernelInfo& info)
      : size_(info.attributes.Int("size")), code_(info.attributes.Int("dtype")) {
    NPU_OP_CHECK(kOp, code_ == 0 || code_ == 1, "expected dtype 0 (float32) or 1 (float16), got ", code_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input);
    NPU_OP_CHECK(kOp, x && x.shape.rank() == 1, "expected input of shape [n], got ", x.shape);
    const int64_t count = Shape{x.shape[0], 8}.Elements();
    NPU_OP_CHECK(kOp, size_ > 0 && count % size_ == 0, "expected size to divide the ", count, " bits, got ", size_);
    const TensorView y = ctx.Output(Out::y, code_ == 0 ? DType::kFloat32 : DType::kFloat16, {size_, count / size_});
    if (count == 0) return;
    DispatchFloats(kOp, y.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [from = x.as<const uint8_t>(), to = y.as<T>(), count] {
        const T plus = FromFloat<T>(1.0f), minus = FromFloat<T>(-1.0f);
        ParallelFor(count, 32768, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) to[i] = (from[i / 8] >> (i % 8) & 1) != 0 ? plus : minus;
        });
      });
    });
  }

 private:
  int64_t size_, code_;
};

NPU_KERNEL(NPUSignBitsUnpack, SignBitsUnpackKernel);

}  // namespace
}  // namespace npu
