// npu_bmmV2(input, mat2; output_sizes) -> y. The semantics are in npu_bmmV2.py.
#include "contrib_ops/matmul/npu_bmmV2.h"

#include <algorithm>

#include "ep/kernels/matmul/launch.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUBmmV2::In;
using Out = nodes::NPUBmmV2::Out;

constexpr const char* kOp = "npu_bmmV2";

class BmmV2Kernel final : public Kernel {
 public:
  explicit BmmV2Kernel(const KernelInfo& info) : output_sizes_(info.attributes.Ints("output_sizes")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != In::mat2 || !PackMatMulWeight(kOp, constant, packed_, stream)) return false;
    packed_view_ = constant;
    packed_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(In::input), b = packed_ ? packed_view_ : ctx.Input(In::mat2);
    NPU_OP_CHECK(kOp, a && b, "expected the tensors input and mat2");
    NPU_OP_CHECK(kOp, a.dtype == b.dtype, "expected mat2 of input's dtype ", NameOf(a.dtype), ", got ",
                 NameOf(b.dtype));
    const MatMulShape s = InferMatMul(kOp, a.shape, b.shape);
    LaunchMatMul(ctx, kOp, a, b, packed_, s, ctx.Output(Out::y, a.dtype, ShapeOf(s.output)));
  }

 private:
  Shape ShapeOf(const Shape& product) const {
    if (output_sizes_.rank() == 0) return product;
    const bool sizes = std::all_of(output_sizes_.begin(), output_sizes_.end(), [](int64_t size) { return size >= 0; });
    NPU_OP_CHECK(kOp, sizes && output_sizes_.Elements() == product.Elements(), "expected output_sizes of the ", product,
                 " elements of the product, got ", output_sizes_);
    return output_sizes_;
  }

  Shape output_sizes_;
  gemm::PackedWeight packed_;
  TensorView packed_view_;  // type and shape
};

NPU_KERNEL(NPUBmmV2, BmmV2Kernel);

}  // namespace
}  // namespace npu
