// MaxUnpool (ai.onnx 9 to 22): writes the values that MaxPool chose back to where they were, and zeros elsewhere.
// Indices count through the whole tensor that the pool's attributes say; a larger output_shape only adds zeros behind
// it along each axis.
#include <cstring>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/pooling/windows.h"

namespace npu {
namespace {

constexpr const char* kOp = "MaxUnpool";

template <class T>
struct Unpool {
  const T* x;
  const int64_t* indices;
  T* y;
  int64_t count;
  Shape pooled, whole;  // the shapes that indices and the output have

  void Run() const {
    ParallelFor(whole.Elements(), kCheapGrain, [this](int64_t begin, int64_t end) {
      std::memset(y + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
    });
    // In order: of values with the same index, the last one stays.
    const CheckedNumbers index(kOp, "indices", indices, 0, pooled.Elements());
    for (int64_t i = 0; i < count; ++i) y[pooled == whole ? index[i] : Moved(index[i])] = x[i];
  }

 private:
  int64_t Moved(int64_t index) const {
    int64_t moved = 0, pitch = 1;
    for (int d = pooled.rank() - 1; d >= 0; --d) {
      moved += index % pooled[d] * pitch;
      index /= pooled[d];
      pitch *= whole[d];
    }
    return moved;
  }
};

class MaxUnpoolKernel final : public Kernel {
 public:
  explicit MaxUnpoolKernel(const KernelInfo& info)
      : kernel_(
            pooling::ReadList(kOp, info.attributes, "kernel_shape", info.attributes.Ints("kernel_shape").size(), 1, 1)),
        strides_(pooling::ReadList(kOp, info.attributes, "strides", kernel_.size(), 1, 1)),
        pads_(pooling::ReadList(kOp, info.attributes, "pads", 2 * kernel_.size(), 0, 0)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), indices = ctx.Input(1), stated = ctx.Input(2);
    NPU_OP_CHECK(kOp, indices.shape == x.shape, "expected I of X's shape ", x.shape, ", got ", indices.shape);
    const Shape pooled = PooledShape(x.shape);
    Shape whole = pooled;
    if (stated) {
      whole = Shape(ReadHostInts(kOp, "output_shape", stated));
      bool fits = whole.rank() == pooled.rank() && whole[0] == pooled[0] && whole[1] == pooled[1];
      for (int d = 2; fits && d < whole.rank(); ++d) fits = whole[d] >= pooled[d];
      NPU_OP_CHECK(kOp, fits, "expected an output_shape of at least ", pooled, " with the same N and C, got ", whole);
    }
    const TensorView y = ctx.Output(0, x.dtype, whole);
    if (y.elements() == 0) return;
    DispatchSize(BitsOf(x.dtype) / 8, [&](auto element) {
      using T = decltype(element);
      const Unpool<T> task{x.as<const T>(), indices.as<const int64_t>(), y.as<T>(), x.elements(), pooled, whole};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  Shape PooledShape(const Shape& x) const {
    const size_t spatial = kernel_.size();
    NPU_OP_CHECK(kOp, spatial > 0 && static_cast<size_t>(x.rank()) == spatial + 2,
                 "expected X [N, C] and a spatial dimension for each of the ", spatial, " of kernel_shape, got shape ",
                 x);
    Shape shape{x[0], x[1]};
    for (size_t d = 0; d < spatial; ++d) {
      const int64_t in = x[static_cast<int>(d) + 2];
      NPU_OP_CHECK(kOp, in > 0 && in <= pooling::kMaxAttribute, "expected spatial dimensions from 1 to ",
                   pooling::kMaxAttribute, ", got shape ", x);
      const int64_t size = (in - 1) * strides_[d] + kernel_[d] - pads_[d] - pads_[d + spatial];
      NPU_OP_CHECK(kOp, size > 0, "expected pads that leave an output, got ", size, " positions along dimension ",
                   d + 2);
      shape.push_back(size);
    }
    return shape;
  }

  std::vector<int64_t> kernel_, strides_, pads_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 9,
    .until = 22,
    .inputs = {Input("X", kAllFloats), Input("I", kInt64), OptionalHostInput("output_shape", kInt64)},
    .outputs = {Output("output", kAllFloats)},
    .attributes = {{.name = "kernel_shape", .kind = AttrDef::Kind::kInts, .required = true},
                   IntsAttribute("pads"),
                   IntsAttribute("strides")},
    .make = MakeKernel<MaxUnpoolKernel>,
});

}  // namespace
}  // namespace npu
