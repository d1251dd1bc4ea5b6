// torch's nonzero as two operators: the number of true elements, and their positions. A kernel allocates its outputs
// before it reads its operands, so the caller of the second has to read the first one's result.
#include <numeric>

#include "ep/kernels/indexing/positions.h"
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
    const int64_t n = x.elements(), blocks = positions::BlocksOf(n);
    auto* const counts = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, blocks)));
    ctx.Launch(kOp, [=, from = x.as<const uint8_t>(), to = y.as<int64_t>()] {
      positions::Count(from, n, counts);
      *to = std::accumulate(counts, counts + blocks, int64_t{0});
    });
  }
};

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
    const int64_t n = x.elements(), blocks = positions::BlocksOf(n);
    auto* const before = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, blocks + 1)));
    ctx.Launch(kOp, [=, shape = x.shape, from = x.as<const uint8_t>(), to = y.as<int64_t>()] {
      before[0] = 0;
      positions::Count(from, n, before + 1);
      std::partial_sum(before, before + blocks + 1, before);
      NPU_OP_CHECK(kOp, before[blocks] == count, "expected ", count, " true elements, got ", before[blocks]);
      positions::Write(kOp, shape, from, before, {to, shape.rank(), 1});
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
