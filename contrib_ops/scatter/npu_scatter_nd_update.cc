// npu_scatter_nd_update(self, indices, updates) -> y. The semantics are in npu_scatter_nd_update.py.
#include "contrib_ops/scatter/npu_scatter_nd_update.h"

#include <cstring>

#include "ep/kernels/indexing/scatter_operands.h"
#include "ep/kernels/indexing/slices.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using Out = nodes::NPUScatterNdUpdate::Out;

constexpr const char* kOp = "npu_scatter_nd_update";

class ScatterNdUpdateKernel final : public Kernel {
 public:
  explicit ScatterNdUpdateKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const auto [self, indices, updates] = ScatterOperandsOf(kOp, ctx);
    const int rank = self.shape.rank(), batch = indices.shape.rank() - 1;
    NPU_OP_CHECK(kOp, batch >= 0 && indices.shape.back() >= 1 && indices.shape.back() <= rank,
                 "expected indices whose last dimension is in [1, ", rank, "], the rank of self, got ", indices.shape);
    const int depth = static_cast<int>(indices.shape.back());
    Shape expected(indices.shape.begin(), static_cast<size_t>(batch));
    for (int axis = depth; axis < rank; ++axis) expected.push_back(self.shape[axis]);
    NPU_OP_CHECK(kOp, updates.shape == expected, "expected updates of shape ", expected, ", got ", updates.shape);

    const TensorView out = ctx.Output(Out::y, self.dtype, self.shape);
    const int64_t tuples = indices.shape.Elements(0, batch);
    const int64_t slice_bytes = static_cast<int64_t>(BytesFor(self.dtype, self.shape.Elements(depth, rank)));
    const Shape dims(self.shape.begin(), static_cast<size_t>(depth));
    // The resolved slices are stored separately from the indices: writes to the output cannot change checked values.
    int64_t* slices =
        tuples == 0 ? nullptr : static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(tuples) * sizeof(int64_t)));
    ctx.Launch(kOp, [source = self.as<const char>(), destination = out.as<char>(), bytes = self.bytes(), dims, slices,
                     tuples, slice_bytes, indices, rows = updates.as<const char>()] {
      const bool distinct = ResolveSlices(kOp, indices, tuples, dims, slices);
      if (destination != source) CopyBytes(source, destination, static_cast<int64_t>(bytes));
      // Where tuples may repeat, they are written in order: the last one wins.
      ForEachSegment(tuples, slice_bytes, distinct, [=](int64_t t, int64_t at, int64_t length) {
        std::memcpy(destination + slices[t] * slice_bytes + at, rows + t * slice_bytes + at,
                    static_cast<size_t>(length));
      });
    });
  }
};

NPU_KERNEL(NPUScatterNdUpdate, ScatterNdUpdateKernel);

}  // namespace
}  // namespace npu
