// scatter_update(self, indices, updates; axis) -> y. The semantics are in scatter_update.py.
#include "contrib_ops/scatter/scatter_update.h"

#include "ep/kernels/indexing/scatter_operands.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using Out = nodes::NPUScatterUpdate::Out;

constexpr const char* kOp = "scatter_update";

// self seen as [batch, outer, size, inner] and updates as [count, outer, length, inner], in elements.
struct Geometry {
  int64_t batch, outer, size, inner, count, length;
  bool pairs;  // indices are [count, 2]: (batch row, start); else update i goes to batch row i
};

// Checks every index and resolves it to the slice [row, outer = 0, start] where an update begins, counted in inner
// runs. Returns whether no two updates can overlap.
template <class Index>
bool ResolveStarts(const Index* indices, const Geometry& g, int64_t* starts) {
  bool distinct = true;
  int64_t previous = -1;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t row = g.pairs ? static_cast<int64_t>(indices[2 * i]) : i;
    const int64_t start = g.pairs ? indices[2 * i + 1] : indices[i];
    NPU_CHECK(row >= 0 && row < g.batch, "[", kOp, "] expected batch rows in [0, ", g.batch, "), got ", row);
    NPU_CHECK(start >= 0 && start <= g.size - g.length, "[", kOp, "] expected indices in [0, ", g.size - g.length,
              "], so that the updates fit the axis, got ", start);
    starts[i] = row * g.outer * g.size + start;
    distinct &= row > previous;
    previous = row;
  }
  return distinct;
}

class ScatterUpdateKernel final : public Kernel {
 public:
  explicit ScatterUpdateKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const auto [self, indices, updates] = ScatterOperandsOf(kOp, ctx);
    const Geometry g = Check(self.shape, indices.shape, updates.shape);

    const TensorView out = ctx.Output(Out::y, self.dtype, self.shape);
    const int64_t inner_bytes = static_cast<int64_t>(BytesFor(self.dtype, g.inner));
    // The resolved starts are stored separately from the indices: writes to the output cannot change checked values.
    int64_t* starts =
        g.count == 0 ? nullptr : static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(g.count) * sizeof(int64_t)));
    ctx.Launch(kOp, [g, inner_bytes, starts, source = self.as<const char>(), destination = out.as<char>(),
                     bytes = self.bytes(), rows = updates.as<const char>(), index = indices.data,
                     is_int32 = indices.dtype == DType::kInt32] {
      const bool distinct = is_int32 ? ResolveStarts(static_cast<const int32_t*>(index), g, starts)
                                     : ResolveStarts(static_cast<const int64_t*>(index), g, starts);
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
  Geometry Check(const Shape& self, const Shape& indices, const Shape& updates) const {
    const int rank = self.rank();
    NPU_CHECK(rank >= 2 && updates.rank() == rank, "[", kOp,
              "] expected self and updates of one rank >= 2, got shapes ", self, " and ", updates);
    const int64_t axis = axis_ < 0 ? axis_ + rank : axis_;
    NPU_CHECK(axis > 0 && axis < rank, "[", kOp, "] expected axis in [", 1 - rank, ", -1] or [1, ", rank - 1, "], got ",
              axis_);
    NPU_CHECK(indices.rank() <= 1 || (indices.rank() == 2 && indices[1] == 2), "[", kOp,
              "] expected indices of shape [], [K] or [K, 2], got ", indices);
    Geometry g;
    g.pairs = indices.rank() == 2;
    g.count = indices.rank() == 0 ? 1 : indices[0];
    g.batch = self[0];
    NPU_CHECK(updates[0] == g.count, "[", kOp, "] expected updates with ", g.count,
              " rows, one for each index, got shape ", updates);
    NPU_CHECK(g.pairs || g.count <= g.batch, "[", kOp, "] expected at most ", g.batch,
              " indices, one for each batch row of self, got ", g.count);
    const int at = static_cast<int>(axis);
    g.size = self[at];
    g.length = updates[at];
    for (int i = 1; i < rank; ++i) {
      NPU_CHECK(i == at ? updates[i] <= self[i] : updates[i] == self[i], "[", kOp, "] expected updates that fit self ",
                self, " outside axis ", axis_, ", got ", updates);
    }
    g.outer = self.Elements(1, at);
    g.inner = self.Elements(at + 1, rank);
    return g;
  }

  int64_t axis_;
};

NPU_KERNEL(NPUScatterUpdate, ScatterUpdateKernel);

}  // namespace
}  // namespace npu
