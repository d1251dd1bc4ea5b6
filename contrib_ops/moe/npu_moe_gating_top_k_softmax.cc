// npu_moe_gating_top_k_softmax(x, finished; k) -> y, expert_idx, row_idx. The semantics are in the .py file.
#include "contrib_ops/moe/npu_moe_gating_top_k_softmax.h"

#include <vector>

#include "ep/kernels/convert.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/ordered_key.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/kernels/top_keys.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMoeGatingTopKSoftmax::In;
using Out = nodes::NPUMoeGatingTopKSoftmax::Out;

constexpr const char* kOp = "npu_moe_gating_top_k_softmax";

// Results that the caller has no use for are null.
template <class T>
struct Task {
  const T* x;
  const bool* finished;
  T* y;
  int32_t *expert_idx, *row_idx;
  int64_t rows, experts, k;

  void Run(int64_t begin, int64_t end) const {
    std::vector<float> values(static_cast<size_t>(experts));
    std::vector<int32_t> keys(static_cast<size_t>(experts)), chosen(static_cast<size_t>(k));
    TopKeys top(experts, k);
    for (int64_t row = begin; row < end; ++row) {
      ToFloat(x + row * experts, values.data(), experts);
      for (int64_t e = 0; e < experts; ++e) keys[e] = OrderedKey(values[e]);
      top.Select(keys.data(), chosen.data());
      if (y != nullptr) {
        SoftmaxRow(values.data(), experts);
        for (int64_t j = 0; j < k; ++j) y[row * k + j] = FromFloat<T>(values[chosen[j]]);
      }
      const bool inactive = finished != nullptr && finished[row];
      for (int64_t j = 0; expert_idx != nullptr && j < k; ++j)
        expert_idx[row * k + j] = inactive ? static_cast<int32_t>(experts) : chosen[j];
      for (int64_t j = 0; row_idx != nullptr && j < k; ++j) row_idx[row * k + j] = static_cast<int32_t>(j * rows + row);
    }
  }
};

class MoeGatingTopKSoftmaxKernel final : public Kernel {
 public:
  explicit MoeGatingTopKSoftmaxKernel(const KernelInfo& info) : k_(info.attributes.Int("k")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), finished = ctx.Input(In::finished);
    NPU_OP_CHECK(kOp, x, "expected the tensor x");
    const int rank = x.shape.rank();
    NPU_OP_CHECK(kOp, rank == 2 || rank == 3, "expected x of rank 2 or 3, got ", x.shape);
    const int64_t experts = x.shape.back();
    NPU_OP_CHECK(kOp, k_ >= 1 && k_ <= experts, "expected k in [1, ", experts, "], got ", k_);
    const Shape lead(x.shape.begin(), static_cast<size_t>(rank - 1));
    NPU_OP_CHECK(kOp, !finished || finished.shape == lead, "expected finished ", lead, ", got ", finished.shape);
    Shape shape = lead;
    shape.push_back(k_);
    CheckRowCount(kOp, shape.Elements());
    const TensorView y = ctx.Output(Out::y, x.dtype, shape);
    const TensorView expert_idx = ctx.Output(Out::expert_idx, DType::kInt32, shape);
    const TensorView row_idx = ctx.Output(Out::row_idx, DType::kInt32, shape);
    const int64_t rows = lead.Elements();
    if (rows == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      const Task<T> task{
          x.as<T>(), finished.as<bool>(), y.as<T>(), expert_idx.as<int32_t>(), row_idx.as<int32_t>(), rows, experts,
          k_};
      ctx.Launch(kOp, [task] {
        ParallelFor(task.rows, RowGrain(task.experts), [&task](int64_t begin, int64_t end) { task.Run(begin, end); });
      });
    });
  }

 private:
  int64_t k_;
};

NPU_KERNEL(NPUMoeGatingTopKSoftmax, MoeGatingTopKSoftmaxKernel);

}  // namespace
}  // namespace npu
