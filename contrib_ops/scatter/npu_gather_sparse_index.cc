// npu_gather_sparse_index(input, index) -> y. The semantics are in npu_gather_sparse_index.py.
#include "contrib_ops/scatter/npu_gather_sparse_index.h"

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUGatherSparseIndex::In;
using Out = nodes::NPUGatherSparseIndex::Out;

constexpr const char* kOp = "npu_gather_sparse_index";

template <class Index>
void Gather(const char* table, int64_t rows, const Index* index, int64_t count, int64_t row_bytes, char* out) {
  const CheckedNumbers row(kOp, "index", index, 0, rows);
  row.CheckFirst(count);
  ForEachSegment(count, row_bytes, true, [=](int64_t i, int64_t at, int64_t length) {
    std::memcpy(out + i * row_bytes + at, table + row[i] * row_bytes + at, static_cast<size_t>(length));
  });
}

class GatherSparseIndexKernel final : public Kernel {
 public:
  explicit GatherSparseIndexKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView table = ctx.Input(In::input), index = ctx.Input(In::index);
    NPU_OP_CHECK(kOp, table && index, "expected the tensors input and index");
    NPU_OP_CHECK(kOp, table.shape.rank() >= 1, "expected input of rank >= 1, got a scalar");
    NPU_OP_CHECK(kOp, index.dtype == DType::kInt32 || index.dtype == DType::kInt64,
                 "expected index of int32 or int64, got ", NameOf(index.dtype));
    Shape shape = index.shape;
    for (int axis = 1; axis < table.shape.rank(); ++axis) shape.push_back(table.shape[axis]);
    const TensorView y = ctx.Output(Out::y, table.dtype, shape);
    const int64_t row_bytes = static_cast<int64_t>(BytesFor(table.dtype, table.shape.Elements(1, table.shape.rank())));
    ctx.Launch(kOp, [from = table.as<const char>(), rows = table.shape[0], at = index.data, count = index.elements(),
                     is_int32 = index.dtype == DType::kInt32, row_bytes, out = y.as<char>()] {
      if (is_int32) {
        Gather(from, rows, static_cast<const int32_t*>(at), count, row_bytes, out);
      } else {
        Gather(from, rows, static_cast<const int64_t*>(at), count, row_bytes, out);
      }
    });
  }
};

NPU_KERNEL(NPUGatherSparseIndex, GatherSparseIndexKernel);

}  // namespace
}  // namespace npu
