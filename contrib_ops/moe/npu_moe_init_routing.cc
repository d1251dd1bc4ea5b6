// npu_moe_init_routing(x, row_idx, expert_idx; active_num) -> expanded_x, expanded_row_idx, expanded_expert_idx. The
// semantics are in npu_moe_init_routing.py.
#include "contrib_ops/moe/npu_moe_init_routing.h"

#include <algorithm>
#include <atomic>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/moe/expert_order.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMoeInitRouting::In;
using Out = nodes::NPUMoeInitRouting::Out;

constexpr const char* kOp = "npu_moe_init_routing";

struct Task {
  const void* x;
  const int32_t *rows_of, *experts;
  void* expanded_x;
  int32_t *places, *sorted_experts;  // the latter null if the caller has no use for it
  uint32_t* keys;
  int32_t* order;
  void* scratch;
  int64_t tokens, rows, kept, row_bytes;

  void Run() const {
    const CheckedNumbers<int32_t> row_idx(kOp, "row_idx", rows_of, 0, rows);
    row_idx.CheckFirst(rows);
    OrderRows(keys, rows, KeysOfExperts(experts, rows, keys), order, scratch);
    std::fill_n(places, rows, -1);
    ParallelFor(rows, kSerialElements, [&, this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t row = order[i];
        // Atomic, because rows that are no permutation, which is found only below, make threads meet.
        std::atomic_ref(places[row_idx[row]]).store(static_cast<int32_t>(i), std::memory_order_relaxed);
        if (sorted_experts != nullptr) sorted_experts[i] = experts[row];
      }
    });
    const int32_t* absent = std::find(places, places + rows, -1);
    NPU_OP_CHECK(kOp, absent == places + rows, "expected row_idx to be a permutation of [0, ", rows, "), got no ",
                 absent - places);
    if (expanded_x == nullptr) return;
    GatherRows(x, kept, row_bytes, expanded_x,
               [order = order, row_idx, tokens = tokens](int64_t i) { return row_idx[order[i]] % tokens; });
  }
};

class MoeInitRoutingKernel final : public Kernel {
 public:
  explicit MoeInitRoutingKernel(const KernelInfo& info) : active_num_(info.attributes.Int("active_num")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), row_idx = ctx.Input(In::row_idx), experts = ctx.Input(In::expert_idx);
    NPU_OP_CHECK(kOp, x && row_idx && experts, "expected the tensors x, row_idx and expert_idx");
    NPU_OP_CHECK(kOp, x.shape.rank() == 2, "expected x [T, H], got ", x.shape);
    const int64_t tokens = x.shape[0];
    NPU_OP_CHECK(kOp, experts.shape.rank() == 2 && experts.shape[0] == tokens, "expected expert_idx [", tokens,
                 ", K], got ", experts.shape);
    NPU_OP_CHECK(kOp, row_idx.shape == experts.shape, "expected row_idx of expert_idx's shape ", experts.shape,
                 ", got ", row_idx.shape);
    NPU_OP_CHECK(kOp, active_num_ >= 0, "expected active_num >= 0, got ", active_num_);
    const int64_t rows = experts.elements();
    CheckRowCount(kOp, rows);
    const int64_t kept = std::min(tokens, active_num_) * experts.shape[1];
    Task task{};
    task.x = x.data;
    task.rows_of = row_idx.as<int32_t>();
    task.experts = experts.as<int32_t>();
    task.expanded_x = ctx.Output(Out::expanded_x, x.dtype, {kept, x.shape[1]}).data;
    task.places = OutputOrScratch<int32_t>(ctx, Out::expanded_row_idx, {rows});
    task.sorted_experts = ctx.Output(Out::expanded_expert_idx, DType::kInt32, {rows}).as<int32_t>();
    if (rows == 0) return;
    task.keys = static_cast<uint32_t*>(ctx.Workspace(BytesFor(DType::kUInt32, rows)));
    task.order = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, rows)));
    task.scratch = ctx.Workspace(OrderScratchBytes(rows));
    task.tokens = tokens;
    task.rows = rows;
    task.kept = kept;
    task.row_bytes = static_cast<int64_t>(BytesFor(x.dtype, x.shape[1]));
    ctx.Launch(kOp, [task] { task.Run(); });
  }

 private:
  int64_t active_num_;
};

NPU_KERNEL(NPUMoeInitRouting, MoeInitRoutingKernel);

}  // namespace
}  // namespace npu
