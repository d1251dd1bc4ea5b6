// npu_sign_bits_pack(self; size) -> y. The semantics are in npu_sign_bits_pack.py.
#include "contrib_ops/tensor/npu_sign_bits_pack.h"

#include <algorithm>

#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUSignBitsPack::In;
using Out = nodes::NPUSignBitsPack::Out;

constexpr const char* kOp = "npu_sign_bits_pack";

class SignBitsPackKernel final : public Kernel {
 public:
  explicit SignBitsPackKernel(const KernelInfo& info) : size_(info.attributes.Int("size")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, x && x.shape.rank() == 1, "expected self of shape [n], got ", x.shape);
    const int64_t n = x.shape[0], count = n / 8 + (n % 8 != 0);
    NPU_OP_CHECK(kOp, size_ > 0 && count % size_ == 0, "expected size to divide the ", count, " bytes, got ", size_);
    const TensorView y = ctx.Output(Out::y, DType::kUInt8, {size_, count / size_});
    if (n == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      ctx.Launch(kOp, [=, from = x.as<const decltype(tag)>(), to = y.as<uint8_t>()] {
        ParallelFor(count, 4096, [=](int64_t begin, int64_t end) {
          for (int64_t byte = begin; byte < end; ++byte) {
            int bits = 0;
            for (int64_t i = 8 * byte; i < std::min(n, 8 * byte + 8); ++i)
              bits |= static_cast<int>(ToFloat(from[i]) >= 0) << (i % 8);
            to[byte] = static_cast<uint8_t>(bits);
          }
        });
      });
    });
  }

 private:
  int64_t size_;
};

NPU_KERNEL(NPUSignBitsPack, SignBitsPackKernel);

}  // namespace
}  // namespace npu
