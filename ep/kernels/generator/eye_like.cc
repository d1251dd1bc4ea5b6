// EyeLike (ai.onnx 9 to 22): ones on a diagonal of a matrix.
#include <algorithm>

#include "ep/kernels/elementwise/one_if.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "EyeLike";

class EyeLikeKernel final : public Kernel {
 public:
  explicit EyeLikeKernel(const KernelInfo& info)
      : dtype_(static_cast<DType>(info.attributes.Int("dtype", 0))), k_(info.attributes.Int("k")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() == 2, "expected a matrix, got shape ", x.shape);
    const DType dtype = dtype_ == DType::kUndefined ? x.dtype : dtype_;
    const TensorView y = ctx.Output(0, dtype, x.shape);
    if (y.elements() == 0) return;
    DispatchTypes(kOp, dtype, FixedWidthTypes{}, [&](auto type) {
      using T = decltype(type);
      const int64_t rows = x.shape[0], columns = x.shape[1];
      ctx.Launch(kOp, [rows, columns, k = k_, to = y.as<T>()] {
        std::fill_n(to, rows * columns, T{});
        if (k <= -rows || k >= columns) return;
        for (int64_t row = std::max<int64_t>(0, -k); row < rows && row + k < columns; ++row)
          to[row * columns + row + k] = OneIf<T>(true);
      });
    });
  }

 private:
  DType dtype_;  // kUndefined: the input's
  int64_t k_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 9,
    .until = 22,
    .inputs = {Input("input", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("dtype"), IntAttribute("k", 0)},
    .make = MakeKernel<EyeLikeKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      const int64_t dtype = node.attributes.Int("dtype", 1);
      if (dtype > 0 && dtype < 64 && kFixedWidth.Contains(static_cast<DType>(dtype))) return "";
      return Concat("EyeLike of ONNX type ", dtype, " is not implemented");
    },
});

}  // namespace
}  // namespace npu
