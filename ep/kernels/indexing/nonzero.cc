// NonZero (ai.onnx 9, 13): the coordinates of the elements that differ from zero, a row for each dimension.
#include <array>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

constexpr const char* kOp = "NonZero";
constexpr int64_t kBlock = kCheapGrain;  // elements that are counted together

template <class T>
bool Differs(T value) {
  return Upcast(value) != 0;
}

template <class T>
int64_t CountIn(const T* x, int64_t begin, int64_t end) {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += Differs(x[i]);
  return count;
}

// Writes the coordinates of the `count` nonzero elements in [begin, end) to the columns from `column` on of a matrix
// with `columns`.
template <class T>
void WriteCoordinates(const Shape& shape, const T* x, int64_t begin, int64_t end, int64_t count, int64_t columns,
                      int64_t column, int64_t* y) {
  std::array<int64_t, Shape::kMaxRank> at{};
  for (int64_t d = shape.rank() - 1, rest = begin; d >= 0; --d) {
    at[static_cast<size_t>(d)] = rest % shape[static_cast<int>(d)];
    rest /= shape[static_cast<int>(d)];
  }
  for (int64_t i = begin; i < end; ++i) {
    if (Differs(x[i])) {
      NPU_OP_CHECK(kOp, count-- > 0, "expected an input that does not change while it is read");
      for (int d = 0; d < shape.rank(); ++d) y[d * columns + column] = at[static_cast<size_t>(d)];
      ++column;
    }
    for (int d = shape.rank() - 1; d >= 0 && ++at[static_cast<size_t>(d)] == shape[d]; --d)
      at[static_cast<size_t>(d)] = 0;
  }
  NPU_OP_CHECK(kOp, count == 0, "expected an input that does not change while it is read");
}

class NonZeroKernel final : public Kernel {
 public:
  explicit NonZeroKernel(const KernelInfo& /*info*/) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int64_t n = x.elements(), blocks = (n + kBlock - 1) / kBlock;
    if (n == 0) {
      ctx.Output(0, DType::kInt64, {x.shape.rank(), 0});
      return;
    }
    DispatchTypes(kOp, x.dtype, FixedWidthTypes{}, [&](auto type) {
      using T = decltype(type);
      const T* from = x.as<const T>();
      auto* before = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, blocks + 1)));
      ctx.Launch(kOp, [=] {
        ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b)
            before[b + 1] = CountIn(from, b * kBlock, std::min(n, (b + 1) * kBlock));
        });
        before[0] = 0;
        for (int64_t b = 0; b < blocks; ++b) before[b + 1] += before[b];
      });
      const int64_t count = ReadBack(ctx, before + blocks);
      const TensorView y = ctx.Output(0, DType::kInt64, {x.shape.rank(), count});
      if (y.elements() == 0) return;
      ctx.Launch(kOp, [=, shape = x.shape, to = y.as<int64_t>()] {
        ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b)
            WriteCoordinates(shape, from, b * kBlock, std::min(n, (b + 1) * kBlock), before[b + 1] - before[b], count,
                             before[b], to);
        });
      });
    });
  }
};

NPU_ONNX_KERNEL({
    .type = "NonZero",
    .since = 9,
    .until = 13,
    .inputs = {Input("X", kFixedWidth)},
    .outputs = {Output("Y", kInt64)},
    .make = MakeKernel<NonZeroKernel>,
});

}  // namespace
}  // namespace npu
