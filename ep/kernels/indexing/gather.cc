#include <algorithm>
#include <cstring>

#include "ep/kernels/indexing/index.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class GatherKernel : public Kernel {
 public:
  explicit GatherKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis", 0)) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView indices = ctx.Input(1);
    const int axis = NormalizeAxis("Gather", axis_, x.shape.rank());
    Shape shape(x.shape.begin(), axis);
    for (int64_t d : indices.shape) shape.push_back(d);
    for (int d = axis + 1; d < x.shape.rank(); ++d) shape.push_back(x.shape[d]);
    const TensorView y = ctx.Output(0, x.dtype, shape);
    const int64_t count = indices.elements();
    const int64_t outer = x.shape.Elements(0, axis);
    const int64_t n = x.shape[axis];
    const int64_t block = x.shape.Elements(axis + 1, x.shape.rank()) * (BitsOf(x.dtype) / 8);
    if (y.elements() == 0) return;
    DispatchIndices("Gather", indices, [&](auto type) {
      using Index = decltype(type);
      ctx.Launch("Gather", [=, from = x.as<const char>(), at = indices.as<const Index>(), to = y.as<char>()] {
        ParallelFor(outer * count, std::max<int64_t>(1, kCopyGrain / block), [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t index = CheckedIndex("Gather", at[i % count], n, i % count);
            std::memcpy(to + i * block, from + (i / count * n + index) * block, static_cast<size_t>(block));
          }
        });
      });
    });
  }

 private:
  int64_t axis_;
};

OpDef GatherDef() {
  OpDef def = OnnxDef("Gather", 1, 13, {{"data", kFixedWidth}, {"indices", kIndices}}, {{"output", kFixedWidth}},
                      &MakeKernel<GatherKernel>);
  def.attributes = {IntAttribute("axis", 0)};
  return def;
}

NPU_ONNX_KERNEL(GatherDef());

}  // namespace
}  // namespace npu
