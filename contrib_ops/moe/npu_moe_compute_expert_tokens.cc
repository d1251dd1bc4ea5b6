// npu_moe_compute_expert_tokens(sorted_expert_for_source_row; num_experts) -> y. The semantics are in
// npu_moe_compute_expert_tokens.py.
#include "contrib_ops/moe/npu_moe_compute_expert_tokens.h"

#include <algorithm>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMoeComputeExpertTokens::In;
using Out = nodes::NPUMoeComputeExpertTokens::Out;

constexpr const char* kOp = "npu_moe_compute_expert_tokens";

// Adds the rows of each expert to `counts`; the last entry takes those of no expert, the first also negative ones.
void Count(const int32_t* experts, int64_t begin, int64_t end, int32_t num_experts, int32_t* counts) {
  // Sorted rows come in runs, which are counted in a register.
  int32_t expert = 0, run = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t next = std::clamp(ReadOnce(experts + i), 0, num_experts);
    if (next != expert) {
      counts[expert] += run;
      expert = next;
      run = 0;
    }
    ++run;
  }
  counts[expert] += run;
}

class MoeComputeExpertTokensKernel final : public Kernel {
 public:
  explicit MoeComputeExpertTokensKernel(const KernelInfo& info) : num_experts_(info.attributes.Int("num_experts")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView experts = ctx.Input(In::sorted_expert_for_source_row);
    NPU_OP_CHECK(kOp, experts && experts.shape.rank() == 1, "expected sorted_expert_for_source_row [N], got ",
                 experts.shape);
    NPU_OP_CHECK(kOp, num_experts_ >= 1 && num_experts_ <= kMaxExperts, "expected num_expert in [1, ", kMaxExperts,
                 "], got ", num_experts_);
    const int64_t rows = experts.shape[0];
    CheckRowCount(kOp, rows);
    const TensorView y = ctx.Output(Out::y, DType::kInt32, {num_experts_});
    const int64_t stride = num_experts_ + 1, chunks = ThreadsForElements(rows);
    auto* counts = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, chunks * stride)));
    ctx.Launch(kOp, [from = experts.as<int32_t>(), rows, num_experts = num_experts_, chunks, stride, counts,
                     to = y.as<int32_t>()] {
      ForRowsOfThreads(rows, chunks, [=](int64_t chunk, int64_t begin, int64_t end) {
        int32_t* own = counts + chunk * stride;
        std::fill_n(own, stride, 0);
        Count(from, begin, end, static_cast<int32_t>(num_experts), own);
      });
      int32_t total = 0;
      for (int64_t e = 0; e < num_experts; ++e) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) total += counts[chunk * stride + e];
        to[e] = total;
      }
    });
  }

 private:
  int64_t num_experts_;
};

NPU_KERNEL(NPUMoeComputeExpertTokens, MoeComputeExpertTokensKernel);

}  // namespace
}  // namespace npu
