// Updates that are written into slices of a tensor along one axis, one batch row each: scatter_update and what
// quantises on the way.
#pragma once

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

namespace npu {

// self seen as [batch, outer, size, inner] and updates as [count, outer, length, inner], in elements.
struct SliceUpdates {
  int64_t batch, outer, size, inner, count, length;
  bool pairs;  // indices are [count, 2]: (batch row, start); else update i goes to batch row i
};

inline SliceUpdates CheckSliceUpdates(const char* op, int64_t given_axis, const Shape& self, const Shape& indices,
                                      const Shape& updates) {
  const int rank = self.rank();
  NPU_OP_CHECK(op, rank >= 2 && updates.rank() == rank, "expected self and updates of one rank >= 2, got shapes ", self,
               " and ", updates);
  const int64_t axis = given_axis < 0 ? given_axis + rank : given_axis;
  NPU_OP_CHECK(op, axis > 0 && axis < rank, "expected axis in [", 1 - rank, ", -1] or [1, ", rank - 1, "], got ",
               given_axis);
  NPU_OP_CHECK(op, indices.rank() <= 1 || (indices.rank() == 2 && indices[1] == 2),
               "expected indices of shape [], [K] or [K, 2], got ", indices);
  SliceUpdates g;
  g.pairs = indices.rank() == 2;
  g.count = indices.rank() == 0 ? 1 : indices[0];
  g.batch = self[0];
  NPU_OP_CHECK(op, updates[0] == g.count, "expected updates with ", g.count, " rows, one for each index, got shape ",
               updates);
  NPU_OP_CHECK(op, g.pairs || g.count <= g.batch, "expected at most ", g.batch,
               " indices, one for each batch row of self, got ", g.count);
  const int at = static_cast<int>(axis);
  g.size = self[at];
  g.length = updates[at];
  for (int i = 1; i < rank; ++i) {
    NPU_OP_CHECK(op, i == at ? updates[i] <= self[i] : updates[i] == self[i], "expected updates that fit self ", self,
                 " outside axis ", given_axis, ", got ", updates);
  }
  g.outer = self.Elements(1, at);
  g.inner = self.Elements(at + 1, rank);
  return g;
}

// Checks every index and turns it into the slice [row, outer = 0, start] that an update begins at, counted in inner
// runs. Returns whether no two updates can overlap.
template <class Index>
bool ResolveStarts(const char* op, const Index* indices, const SliceUpdates& g, int64_t* starts) {
  bool distinct = true;
  int64_t previous = -1;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t row = g.pairs ? ReadOnce(indices + 2 * i) : i, start = ReadOnce(indices + (g.pairs ? 2 * i + 1 : i));
    NPU_OP_CHECK(op, row >= 0 && row < g.batch, "expected batch rows in [0, ", g.batch, "), got ", row);
    NPU_OP_CHECK(op, start >= 0 && start <= g.size - g.length, "expected indices in [0, ", g.size - g.length,
                 "], so that the updates fit the axis, got ", start);
    starts[i] = row * g.outer * g.size + start;
    distinct &= row > previous;
    previous = row;
  }
  return distinct;
}

inline bool ResolveStarts(const char* op, const TensorView& indices, const SliceUpdates& g, int64_t* starts) {
  if (indices.dtype == DType::kInt32) return ResolveStarts(op, indices.as<const int32_t>(), g, starts);
  return ResolveStarts(op, indices.as<const int64_t>(), g, starts);
}

}  // namespace npu
