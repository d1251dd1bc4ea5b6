// npu_scatter_nd_update(self, indices, updates) -> y. The semantics are in npu_scatter_nd_update.py.
#include <algorithm>
#include <cstring>

#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

constexpr const char* kOp = "npu_scatter_nd_update";
constexpr int64_t kGrainBytes = 64 * 1024;  // copies that are worth another thread

// Checks every index tuple and turns it into the number of the slice that it names. Returns whether the numbers
// increase strictly, so that no two tuples name one slice.
template <class Index>
bool ResolveSlices(const Index* indices, int64_t tuples, const Shape& dims, int64_t* slices) {
  bool increasing = true;
  int64_t previous = -1;
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t slice = 0;
    for (int axis = 0; axis < dims.rank(); ++axis) {
      const int64_t index = *indices++;
      NPU_CHECK(index >= 0 && index < dims[axis], "[", kOp, "] expected indices in [0, ", dims[axis], "), got ", index,
                " for axis ", axis);
      slice = slice * dims[axis] + index;
    }
    slices[t] = slice;
    increasing &= slice > previous;
    previous = slice;
  }
  return increasing;
}

void CopyBytes(const char* source, char* destination, int64_t bytes) {
  ParallelFor(bytes, kGrainBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(destination + begin, source + begin, static_cast<size_t>(end - begin));
  });
}

void WriteSlices(const char* updates, const int64_t* slices, int64_t tuples, int64_t slice_bytes, bool distinct,
                 char* out) {
  const int64_t bytes = tuples * slice_bytes;
  if (bytes == 0) return;
  // Where tuples may repeat, one thread writes them in order: the last one wins.
  ParallelFor(bytes, distinct ? kGrainBytes : bytes, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t t = begin / slice_bytes, at = begin % slice_bytes;
      const int64_t count = std::min(end - begin, slice_bytes - at);
      std::memcpy(out + slices[t] * slice_bytes + at, updates + begin, static_cast<size_t>(count));
      begin += count;
    }
  });
}

class ScatterNdUpdateKernel final : public Kernel {
 public:
  explicit ScatterNdUpdateKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView self = ctx.Input(0), indices = ctx.Input(1), updates = ctx.Input(2);
    NPU_CHECK(self && indices && updates, "[", kOp, "] expected the tensors self, indices and updates");
    NPU_CHECK(indices.dtype == DType::kInt32 || indices.dtype == DType::kInt64, "[", kOp,
              "] expected indices of int32 or int64, got ", NameOf(indices.dtype));
    NPU_CHECK(updates.dtype == self.dtype, "[", kOp, "] expected updates of self's dtype ", NameOf(self.dtype),
              ", got ", NameOf(updates.dtype));
    const int rank = self.shape.rank(), batch = indices.shape.rank() - 1;
    NPU_CHECK(batch >= 0 && indices.shape.back() >= 1 && indices.shape.back() <= rank, "[", kOp,
              "] expected indices whose last dimension is in [1, ", rank, "], the rank of self, got ", indices.shape);
    const int depth = static_cast<int>(indices.shape.back());
    Shape expected(indices.shape.begin(), static_cast<size_t>(batch));
    for (int axis = depth; axis < rank; ++axis) expected.push_back(self.shape[axis]);
    NPU_CHECK(updates.shape == expected, "[", kOp, "] expected updates of shape ", expected, ", got ", updates.shape);

    const TensorView out = ctx.Output(0, self.dtype, self.shape);
    const int64_t tuples = indices.shape.Elements(0, batch);
    const int64_t slice_bytes = static_cast<int64_t>(BytesFor(self.dtype, self.shape.Elements(depth, rank)));
    const Shape dims(self.shape.begin(), static_cast<size_t>(depth));
    // The resolved slices live apart from the indices: whatever is written, what was checked is what is used.
    int64_t* slices = tuples == 0 ? nullptr
                                  : static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(tuples) * sizeof(int64_t)));
    ctx.Launch(kOp, [source = self.as<const char>(), destination = out.as<char>(), bytes = self.bytes(), dims, slices,
                     tuples, slice_bytes, index = indices.data, is_int32 = indices.dtype == DType::kInt32,
                     rows = updates.as<const char>()] {
      const bool distinct = is_int32 ? ResolveSlices(static_cast<const int32_t*>(index), tuples, dims, slices)
                                     : ResolveSlices(static_cast<const int64_t*>(index), tuples, dims, slices);
      if (destination != source) CopyBytes(source, destination, static_cast<int64_t>(bytes));
      WriteSlices(rows, slices, tuples, slice_bytes, distinct, destination);
    });
  }
};

NPU_KERNEL(NPUScatterNdUpdate, ScatterNdUpdateKernel);

}  // namespace
}  // namespace npu
