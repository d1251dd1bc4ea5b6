// npu_slice(self; offsets, size) -> y. The semantics are in npu_slice.py.
#include "contrib_ops/tensor/npu_slice.h"

#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUSlice::In;
using Out = nodes::NPUSlice::Out;

constexpr const char* kOp = "npu_slice";

class NpuSliceKernel final : public Kernel {
 public:
  explicit NpuSliceKernel(const KernelInfo& info)
      : offsets_(info.attributes.Ints("offsetss")), sizes_(info.attributes.Ints("sizes")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    const auto rank = static_cast<size_t>(x.shape.rank());
    bool inside = offsets_.size() == rank && sizes_.size() == rank;
    for (size_t i = 0; inside && i < rank; ++i) {
      const int64_t most = x.shape[static_cast<int>(i)];
      inside = offsets_[i] >= 0 && sizes_[i] >= 0 && sizes_[i] <= most && offsets_[i] <= most - sizes_[i];
    }
    NPU_OP_CHECK(kOp, inside, "expected offsets and size of a block inside ", x.shape, ", got ", Shape(offsets_),
                 " and ", Shape(sizes_));
    const auto strides = DenseStrides(x.shape);
    int64_t first = 0;
    for (size_t i = 0; i < rank; ++i) first += offsets_[i] * strides[i];
    const TensorView y = ctx.Output(Out::y, x.dtype, Shape(sizes_));
    if (y.elements() == 0) return;
    const size_t size = BytesFor(x.dtype, 1);
    LaunchStridedCopy(ctx, kOp, y.shape, strides, size, y.data,
                      x.as<const char>() + first * static_cast<int64_t>(size));
  }

 private:
  std::vector<int64_t> offsets_, sizes_;
};

NPU_KERNEL(NPUSlice, NpuSliceKernel);

}  // namespace
}  // namespace npu
