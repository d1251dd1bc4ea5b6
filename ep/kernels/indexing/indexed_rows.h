// torch's index_add, index_copy and index_fill: rows of a tensor along one axis, selected by a list of indices.
#pragma once

#include <algorithm>

#include "ep/kernels/indexing/index.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/reduce/axis.h"

namespace npu {

// Calls f(row, k, begin, end) for each of `count` indices in order, in each outer part: the tensor's row, the source's
// row, and the part [begin, end) of the row's elements. Runs in parallel over parts, which are independent of the order
// of the indices. As in torch, negative indices count from the end only if `wraps`.
template <bool wraps, class Index, class F>
void ForEachIndexedRow(const char* op, const AxisView& view, const Index* indices, int64_t count, const F& f) {
  constexpr int64_t kColumns = 128;  // so few that rows of an embedding are shared among threads
  const CheckedNumbers<Index> rows(op, "an index", indices, wraps ? -view.n : 0, view.n);
  rows.CheckFirst(count);
  const int64_t parts = (view.inner + kColumns - 1) / kColumns;
  ParallelFor(view.outer * parts, std::max<int64_t>(1, 4096 / (count + 1)), [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t outer = part / parts, begin = part % parts * kColumns;
      const int64_t end = std::min(view.inner, begin + kColumns);
      for (int64_t k = 0; k < count; ++k) {
        const int64_t index = rows[k];
        f(outer * view.n + (index < 0 ? index + view.n : index), outer * count + k, begin, end);
      }
    }
  });
}

// What the operators share: `y` holds self's elements for work launched after LaunchStart().
struct IndexedRows {
  TensorView self, y, index;
  AxisView view;
  int64_t count;

  IndexedRows(const char* op, OpContext& ctx, int64_t given_axis) : self(ctx.Input(0)), index(ctx.Input(1)) {
    NPU_OP_CHECK(op, self && index, "expected the tensors self and index");
    NPU_OP_CHECK(op, kIndices.Contains(index.dtype), "expected indices of int32 or int64, got ", NameOf(index.dtype));
    NPU_OP_CHECK(op, index.shape.rank() <= 1, "expected a list of indices, got shape ", index.shape);
    const int axis = NormalizeAxis(op, given_axis, self.shape.rank());
    view = ViewAround(self.shape, axis);
    count = index.elements();
    rows_ = self.shape;
    rows_[axis] = count;
    y = ctx.Output(0, self.dtype, self.shape);
  }
  // Call after the last check: a refused call launches nothing.
  void LaunchStart(const char* op, OpContext& ctx) const { LaunchCopy(ctx, op, self, y); }
  // Checks the rows that are added or copied: of self's shape, with one row per index.
  TensorView Source(const char* op, const TensorView& source) const {
    NPU_OP_CHECK(op, source && source.dtype == y.dtype && source.shape == rows_, "expected source ", NameOf(y.dtype),
                 " of shape ", rows_, ", got ", NameOf(source.dtype), " of ", source.shape);
    return source;
  }
  bool empty() const { return y.elements() == 0 || count == 0; }

 private:
  Shape rows_;
};

inline OpDef IndexedRowsDef(const char* type, DTypeSet dtypes, std::vector<ArgDef> more_inputs, KernelFactory make) {
  OpDef def = {.domain = "npu.aten",
               .type = type,
               .inputs = {Input("self", dtypes), Input("index", kIndices)},
               .outputs = {Output("output", dtypes)},
               .attributes = {RequiredInt("axis")},
               .may_alias = {{0, 0}},
               .make = std::move(make)};
  for (ArgDef& input : more_inputs) def.inputs.push_back(std::move(input));
  return def;
}

}  // namespace npu
