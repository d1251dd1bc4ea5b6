// torch's nonzero as two operators: the number of true elements, and their positions. A kernel allocates its outputs
// before it reads its operands, so the caller of the second has to read the first one's result.
#include <algorithm>
#include <array>
#include <numeric>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "nonzero";

constexpr int64_t kBlock = kCheapGrain;  // elements that are counted together

int64_t BlocksOf(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// How many true elements each block has.
void CountTrue(const uint8_t* x, int64_t n, int64_t* counts) {
  ParallelFor(BlocksOf(n), 1, [=](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t end = std::min(n, (b + 1) * kBlock);
      int32_t count = 0;
#pragma omp simd reduction(+ : count)
      for (int64_t i = b * kBlock; i < end; ++i) count += x[i] != 0;
      counts[b] = count;
    }
  });
}

class CountTrueKernel : public Kernel {
 public:
  explicit CountTrueKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x && x.dtype == DType::kBool, "expected a tensor of bool");
    const TensorView y = ctx.Output(0, DType::kInt64, Shape{});
    const int64_t n = x.elements(), blocks = BlocksOf(n);
    auto* const counts = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, blocks)));
    ctx.Launch(kOp, [=, from = x.as<const uint8_t>(), to = y.as<int64_t>()] {
      CountTrue(from, n, counts);
      *to = std::accumulate(counts, counts + blocks, int64_t{0});
    });
  }
};

// Writes the positions of the true elements in [begin, end) in row-major order; there must be `count` of them.
void WritePositions(const Shape& shape, const uint8_t* x, int64_t begin, int64_t end, int64_t count, int64_t* to) {
  constexpr int64_t kMost = 256;  // elements that are looked at together
  const int inner = shape.rank() - 1;
  const int64_t width = shape[inner];
  std::array<int64_t, Shape::kMaxRank> position{};
  for (int64_t d = inner, rest = begin; d >= 0; rest /= shape[static_cast<int>(d)], --d)
    position[static_cast<size_t>(d)] = rest % shape[static_cast<int>(d)];
  int64_t& column = position[static_cast<size_t>(inner)];
  while (begin < end) {
    const int64_t some = std::min({kMost, end - begin, width - column});
    // Each is written, and kept if it is true: a branch would often be predicted wrongly.
    int64_t columns[kMost], found = 0;
    for (int64_t i = 0; i < some; ++i) {
      columns[found] = column + i;
      found += x[begin + i] != 0;
    }
    NPU_OP_CHECK(kOp, found <= count, "expected a mask that does not change while it is read");
    count -= found;
    for (int64_t k = 0; k < found; ++k) {
      for (int d = 0; d < inner; ++d) *to++ = position[static_cast<size_t>(d)];
      *to++ = columns[k];
    }
    begin += some;
    column += some;
    if (column < width) continue;
    column = 0;
    for (int d = inner - 1; d >= 0 && ++position[static_cast<size_t>(d)] == shape[d]; --d)
      position[static_cast<size_t>(d)] = 0;
  }
  NPU_OP_CHECK(kOp, count == 0, "expected a mask that does not change while it is read");
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
    const int64_t n = x.elements(), blocks = BlocksOf(n);
    auto* const before = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, blocks + 1)));
    ctx.Launch(kOp, [=, shape = x.shape, from = x.as<const uint8_t>(), to = y.as<int64_t>()] {
      before[0] = 0;
      CountTrue(from, n, before + 1);
      std::partial_sum(before, before + blocks + 1, before);
      NPU_OP_CHECK(kOp, before[blocks] == count, "expected ", count, " true elements, got ", before[blocks]);
      ParallelFor(blocks, 1, [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; ++b)
          WritePositions(shape, from, b * kBlock, std::min(n, (b + 1) * kBlock), before[b + 1] - before[b],
                         to + before[b] * shape.rank());
      });
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
