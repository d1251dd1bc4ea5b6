// _npu_format_cast(self; acl_format) -> y. The semantics are in npu_format_cast.py.
#include "contrib_ops/tensor/npu_format_cast.h"

#include <algorithm>
#include <iterator>

#include "ep/kernels/movement/copy.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPUFormatCast::In;
using Out = nodes::NPUFormatCast::Out;

constexpr const char* kOp = "_npu_format_cast";
constexpr int64_t kFormats[] = {-1, 0, 1, 2, 3, 4, 12, 16, 27, 29, 30, 32, 33, 35, 47, 50, 51, 52, 53, 54};

class FormatCastKernel final : public Kernel {
 public:
  explicit FormatCastKernel(const KernelInfo& info) : format_(info.attributes.Int("acl_format")) {}

  void Compute(OpContext& ctx) const override {
    NPU_OP_CHECK(
        kOp, std::find(std::begin(kFormats), std::end(kFormats), format_) != std::end(kFormats),
        "expected acl_format of -1, 0, 1, 2, 3, 4, 12, 16, 27, 29, 30, 32, 33, 35, 47, 50, 51, 52, 53, 54, got ",
        format_);
    const TensorView x = ctx.Input(In::self);
    LaunchCopy(ctx, kOp, x, ctx.Output(Out::y, x.dtype, x.shape));
  }

 private:
  int64_t format_;
};

NPU_KERNEL(NPUFormatCast, FormatCastKernel);

}  // namespace
}  // namespace npu
