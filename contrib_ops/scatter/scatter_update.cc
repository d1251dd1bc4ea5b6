// scatter_update(self, indices, updates; axis) -> y. The semantics are in scatter_update.py.
#include "contrib_ops/scatter/scatter_update.h"

#include "ep/kernels/indexing/scatter_operands.h"
#include "ep/kernels/indexing/slice_updates.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using Out = nodes::NPUScatterUpdate::Out;

constexpr const char* kOp = "scatter_update";

class ScatterUpdateKernel final : public Kernel {
 public:
  explicit ScatterUpdateKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const auto [self, indices, updates] = ScatterOperandsOf(kOp, ctx);
    const SliceUpdates g = CheckSliceUpdates(kOp, axis_, self.shape, indices.shape, updates.shape);

    const TensorView out = ctx.Output(Out::y, self.dtype, self.shape);
    const int64_t inner_bytes = static_cast<int64_t>(BytesFor(self.dtype, g.inner));
    // The resolved starts are stored separately from the indices: writes to the output cannot change checked values.
    int64_t* starts =
        g.count == 0 ? nullptr : static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(g.count) * sizeof(int64_t)));
    ctx.Launch(kOp, [g, inner_bytes, starts, source = self.as<const char>(), destination = out.as<char>(),
                     bytes = self.bytes(), rows = updates.as<const char>(), indices = indices] {
      const bool distinct = ResolveStarts(kOp, indices, g, starts);
      if (destination != source) CopyBytes(source, destination, static_cast<int64_t>(bytes));
      const int64_t run = g.length * inner_bytes;
      // Where updates may overlap, they are written in order: the last one wins.
      ForEachSegment(g.count * g.outer, run, distinct, [=](int64_t segment, int64_t at, int64_t length) {
        const int64_t to = starts[segment / g.outer] + segment % g.outer * g.size;
        std::memcpy(destination + to * inner_bytes + at, rows + segment * run + at, static_cast<size_t>(length));
      });
    });
  }

 private:
  int64_t axis_;
};

NPU_KERNEL(NPUScatterUpdate, ScatterUpdateKernel);

}  // namespace
}  // namespace npu
