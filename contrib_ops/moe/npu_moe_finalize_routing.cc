// npu_moe_finalize_routing(expanded_permuted_rows, .., export_for_source_row; drop_pad_mode, k) -> y, and the same as
// NPUMoeFinalizeRoutingV2, whose inputs come in another order. The semantics are in npu_moe_finalize_routing.py.
#include "contrib_ops/moe/npu_moe_finalize_routing.h"

#include <algorithm>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/float_block.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

constexpr const char* kOp = "npu_moe_finalize_routing";
constexpr int64_t kColumns = 4 * kRowBlock;  // of a row, that one call of a thread computes

struct Arguments {
  TensorView rows, skip1, skip2, bias, scales, index, experts;
};

template <class In>
Arguments ArgumentsOf(OpContext& ctx) {
  return {.rows = ctx.Input(In::expanded_permuted_rows),
          .skip1 = ctx.Input(In::skip1),
          .skip2 = ctx.Input(In::skip2),
          .bias = ctx.Input(In::bias),
          .scales = ctx.Input(In::scales),
          .index = ctx.Input(In::expanded_src_to_dst_row),
          .experts = ctx.Input(In::export_for_source_row)};
}

template <class T>
struct Task {
  Arguments a;
  T* y;
  int64_t tokens, slots, width, row_count;
  int64_t token_stride, slot_stride;  // of the index

  void Run() const {
    row_of().CheckFirst(tokens * slots);
    if (a.bias) expert_of().CheckFirst(tokens * slots);
    const int64_t pieces = (width + kColumns - 1) / kColumns;
    ParallelFor(tokens * pieces, RowGrain(std::min(width, kColumns) * (slots + 1)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t column = i % pieces * kColumns;
        ForEachBlock(std::min(kColumns, width - column),
                     [&](int64_t at, int64_t n) { Block(i / pieces, column + at, n); });
      }
    });
  }

 private:
  CheckedNumbers<int32_t> row_of() const {
    return {kOp, "expanded_src_to_dst_row", a.index.as<int32_t>(), -1, row_count};
  }
  CheckedNumbers<int32_t> expert_of() const {
    return {kOp, "export_for_source_row", a.experts.as<int32_t>(), 0, a.bias.shape[0]};
  }

  void Block(int64_t token, int64_t column, int64_t n) const {
    alignas(64) static constexpr float kZeros[kRowBlock] = {};
    alignas(64) float sum[kRowBlock] = {};
    FloatBlock row_block, bias_block, scale_block;
    for (int64_t j = 0; j < slots; ++j) {
      const int64_t row = row_of()[token * token_stride + j * slot_stride];
      const float* values = row < 0 ? kZeros : row_block.Load(a.rows, row * width + column, n);
      const float scale = a.scales ? *scale_block.Load(a.scales, token * slots + j, 1) : 1.0f;
      if (a.bias) {
        const float* bias = bias_block.Load(a.bias, expert_of()[token * slots + j] * width + column, n);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sum[i] += scale * (values[i] + bias[i]);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sum[i] += scale * values[i];
      }
    }
    const int64_t at = token * width + column;
    OutBlock<T> result;
    float* out = result.Values(y + at);
    if (a.skip1) {
      const float* first = row_block.Load(a.skip1, at, n);
      const float* second = a.skip2 ? bias_block.Load(a.skip2, at, n) : kZeros;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = (first[i] + second[i]) + sum[i];
    } else {
      std::copy(sum, sum + n, out);
    }
    result.Commit(y + at, n);
  }
};

class MoeFinalizeRoutingKernel final : public Kernel {
 public:
  explicit MoeFinalizeRoutingKernel(const KernelInfo& info)
      : is_v2_(info.op_type == "NPUMoeFinalizeRoutingV2"),
        mode_(info.attributes.Int("drop_pad_mode")),
        k_(info.attributes.Int("k")) {
    NPU_OP_CHECK(kOp, mode_ >= 0 && mode_ <= 3, "expected drop_pad_mode in [0, 3], got ", mode_);
  }

  void Compute(OpContext& ctx) const override {
    const Arguments a = is_v2_ ? ArgumentsOf<nodes::NPUMoeFinalizeRoutingV2::In>(ctx)
                               : ArgumentsOf<nodes::NPUMoeFinalizeRouting::In>(ctx);
    NPU_OP_CHECK(kOp, a.rows && a.index, "expected the tensors expanded_permuted_rows and expanded_src_to_dst_row");
    const int rank = a.rows.shape.rank();
    NPU_OP_CHECK(kOp, rank == 2 || rank == 3, "expected expanded_permuted_rows [R, H] or [E, C, H], got ",
                 a.rows.shape);
    NPU_OP_CHECK(kOp, a.index.shape.rank() == 1, "expected expanded_src_to_dst_row [T * K], got ", a.index.shape);
    const Shape grid = Grid(a);
    const int64_t tokens = grid[0], width = a.rows.shape.back();
    const Shape shape{tokens, width};
    NPU_OP_CHECK(kOp, a.skip1 || !a.skip2, "expected skip1 with skip2");
    NPU_OP_CHECK(kOp, !a.skip1 || a.skip1.shape == shape, "expected skip1 ", shape, ", got ", a.skip1.shape);
    NPU_OP_CHECK(kOp, !a.skip2 || a.skip2.shape == shape, "expected skip2 ", shape, ", got ", a.skip2.shape);
    if (a.bias) {
      NPU_OP_CHECK(kOp, a.bias.shape.rank() == 2 && a.bias.shape[1] == width, "expected bias [E, ", width, "], got ",
                   a.bias.shape);
      NPU_OP_CHECK(kOp, a.experts, "expected export_for_source_row with bias");
      NPU_OP_CHECK(kOp, a.experts.shape == grid, "expected export_for_source_row ", grid, ", got ", a.experts.shape);
    }
    const TensorView y = ctx.Output(nodes::NPUMoeFinalizeRouting::Out::y, a.rows.dtype, shape);
    DispatchFloats(kOp, a.rows.dtype, [&](auto tag) {
      using T = decltype(tag);
      Task<T> task{};
      task.a = a;
      task.y = y.as<T>();
      task.tokens = tokens;
      task.slots = grid[1];
      task.width = width;
      task.row_count = a.rows.shape.Elements(0, rank - 1);
      task.token_stride = mode_ < 2 ? 1 : task.slots;
      task.slot_stride = mode_ < 2 ? tokens : 1;
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  // Tokens and slots.
  Shape Grid(const Arguments& a) const {
    const int64_t total = a.index.elements();
    if (a.scales) {
      NPU_OP_CHECK(kOp, a.scales.shape.rank() == 2, "expected scales [T, K], got ", a.scales.shape);
      NPU_OP_CHECK(kOp, a.scales.elements() == total, "expected expanded_src_to_dst_row [T * K] for scales ",
                   a.scales.shape, ", got ", a.index.shape);
      return a.scales.shape;
    }
    NPU_OP_CHECK(kOp, k_ >= 1, "expected k >= 1, got ", k_);
    NPU_OP_CHECK(kOp, total % k_ == 0, "expected expanded_src_to_dst_row [T * ", k_, "] for k ", k_, ", got ",
                 a.index.shape);
    return {total / k_, k_};
  }

  bool is_v2_;
  int64_t mode_, k_;
};

NPU_KERNEL(NPUMoeFinalizeRouting, MoeFinalizeRoutingKernel);

}  // namespace
}  // namespace npu
