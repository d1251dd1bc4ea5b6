// torch's nonzero as two operators: the number of true elements, and their positions. A kernel allocates its outputs
// before it reads its operands, so the caller of the second has to read the first one's result.
#include <array>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "nonzero";

class CountTrueKernel : public Kernel {
 public:
  explicit CountTrueKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x && x.dtype == DType::kBool, "expected a tensor of bool");
    const TensorView y = ctx.Output(0, DType::kInt64, Shape{});
    ctx.Launch(kOp, [from = x.as<const uint8_t>(), n = x.elements(), to = y.as<int64_t>()] {
      int64_t count = 0;
      for (int64_t i = 0; i < n; ++i) count += from[i] != 0;
      *to = count;
    });
  }
};

// Writes the positions of the true elements in row-major order; there must be `count` of them.
void WritePositions(const Shape& shape, const uint8_t* x, int64_t count, int64_t* to) {
  const int inner = shape.rank() - 1;
  const int64_t width = shape[inner], rows = shape.Elements(0, inner);
  std::array<int64_t, Shape::kMaxRank> position{};
  int64_t found = 0;
  for (int64_t row = 0; row < rows; ++row, x += width) {
    for (int64_t i = 0; i < width; ++i) {
      if (x[i] == 0) continue;
      NPU_OP_CHECK(kOp, found < count, "expected ", count, " true elements, got more");
      ++found;
      for (int d = 0; d < inner; ++d) *to++ = position[static_cast<size_t>(d)];
      *to++ = i;
    }
    for (int d = inner - 1; d >= 0 && ++position[static_cast<size_t>(d)] == shape[d]; --d)
      position[static_cast<size_t>(d)] = 0;
  }
  NPU_OP_CHECK(kOp, found == count, "expected ", count, " true elements, got ", found);
}

class TruePositionsKernel : public Kernel {
 public:
  explicit TruePositionsKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int64_t count = ReadHostInt(kOp, "count", ctx.Input(1));
    NPU_OP_CHECK(kOp, x && x.dtype == DType::kBool, "expected a tensor of bool");
    NPU_OP_CHECK(kOp, count >= 0 && count <= x.elements(), "expected a count in [0, ", x.elements(), "], got ", count);
    const TensorView y = ctx.Output(0, DType::kInt64, {count, x.shape.rank()});
    if (y.elements() == 0) return;
    ctx.Launch(kOp, [shape = x.shape, from = x.as<const uint8_t>(), count, to = y.as<int64_t>()] {
      WritePositions(shape, from, count, to);
    });
  }
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "CountTrue",
    .inputs = {Input("x", kBool)},
    .outputs = {Output("count", kInt64)},
    .make = MakeKernel<CountTrueKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "TruePositions",
    .inputs = {Input("x", kBool), HostInput("count", kInt64)},
    .outputs = {Output("positions", kInt64)},
    .make = MakeKernel<TruePositionsKernel>,
});

}  // namespace
}  // namespace npu
