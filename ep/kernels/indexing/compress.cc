// Compress (ai.onnx 9, 11): the slices along an axis, or the elements, whose condition is true.
#include <algorithm>
#include <optional>

#include "ep/kernels/indexing/chosen_rows.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

constexpr const char* kOp = "Compress";

class CompressKernel final : public Kernel {
 public:
  explicit CompressKernel(const KernelInfo& info) {
    if (info.attributes.Has("axis")) axis_ = info.attributes.Int("axis");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), condition = ctx.Input(1);
    NPU_OP_CHECK(kOp, condition && condition.shape.rank() == 1, "expected a condition of rank 1, got shape ",
                 condition.shape);
    const AxisView view = RowsAlong(kOp, x.shape, axis_);
    const int64_t given = std::min(condition.elements(), view.n);  // slices beyond the condition are left out
    int64_t count = 0;
    int64_t* rows = nullptr;
    if (given > 0) {
      rows = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, given + 1)));
      ctx.Launch(kOp, [=, chosen = condition.as<const uint8_t>()] {
        int64_t found = 0;
        for (int64_t i = 0; i < given; ++i) {
          rows[found] = i;
          found += chosen[i] != 0;
        }
        rows[given] = found;
      });
      count = ReadBack(ctx, rows + given);
    }
    const TensorView y = ctx.Output(0, x.dtype, ShapeOfRows(kOp, x.shape, axis_, count));
    if (y.elements() == 0) return;
    ctx.Launch(kOp, [=, bytes = view.inner * (BitsOf(x.dtype) / 8), from = x.as<const char>(), to = y.as<char>()] {
      CopyRows(view, from, rows, count, bytes, to);
    });
  }

 private:
  std::optional<int64_t> axis_;
};

NPU_ONNX_KERNEL({
    .type = "Compress",
    .since = 9,
    .until = 11,
    .inputs = {Input("input", kWithoutBFloat16), Input("condition", kBool)},
    .outputs = {Output("output", kWithoutBFloat16)},
    .attributes = {IntAttribute("axis")},
    .make = MakeKernel<CompressKernel>,
});

}  // namespace
}  // namespace npu
