// npu_moe_re_routing(tokens, expert_token_num_per_rank, per_token_scales; ..) -> permute_tokens,
// permute_per_token_scales, permute_token_idx, expert_token_num. The semantics are in npu_moe_re_routing.py.
#include "contrib_ops/moe/npu_moe_re_routing.h"

#include <algorithm>
#include <numeric>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/indexing/index.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMoeReRouting::In;
using Out = nodes::NPUMoeReRouting::Out;

constexpr const char* kOp = "npu_moe_re_routing";

// Results that the caller has no use for are null.
struct Task {
  TensorView tokens, counts;
  const float* scales;
  void* moved;
  float* moved_scales;
  int32_t* idx;
  void* expert_counts;
  int64_t* starts;  // of the blocks of tokens of one rank and expert, as they were received, and the end of the last
  int32_t* source;  // the token at each place, -1 behind the last
  bool gathers;

  template <class Index>
  void Run() const {
    const int64_t ranks = counts.shape[0], experts = counts.shape[1], total = tokens.shape[0];
    const auto* count = counts.as<const Index>();
    int64_t routed = 0;
    for (int64_t i = 0; i < ranks * experts; ++i) {
      const int64_t tokens_of_block = ReadOnce(count + i);
      NPU_OP_CHECK(kOp, tokens_of_block >= 0 && tokens_of_block <= total - routed,
                   "expected expert_token_num_per_rank of numbers that add up to at most the ", total, " tokens, got ",
                   tokens_of_block, " behind ", routed);
      starts[i] = routed;
      routed += tokens_of_block;
    }
    starts[ranks * experts] = routed;
    int64_t place = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t first = place;
      for (int64_t r = 0; r < ranks; ++r) {
        const int64_t block = r * experts + e, end = place + starts[block + 1] - starts[block];
        std::iota(source + place, source + end, static_cast<int32_t>(starts[block]));
        place = end;
      }
      if (expert_counts != nullptr) static_cast<Index*>(expert_counts)[e] = static_cast<Index>(place - first);
    }
    std::fill(source + place, source + total, -1);
    Move(place);
  }

 private:
  void Move(int64_t routed) const {
    const int64_t total = tokens.shape[0];
    if (idx != nullptr && gathers) {
      std::copy(source, source + total, idx);
    } else if (idx != nullptr) {
      // The tokens that are routed come before the others.
      for (int64_t place = 0; place < routed; ++place) idx[source[place]] = static_cast<int32_t>(place);
      std::fill(idx + routed, idx + total, -1);
    }
    for (int64_t place = 0; moved_scales != nullptr && place < total; ++place)
      moved_scales[place] = scales != nullptr && source[place] >= 0 ? scales[source[place]] : 0.0f;
    if (moved == nullptr) return;
    GatherRows(tokens.data, total, static_cast<int64_t>(BytesFor(tokens.dtype, tokens.shape[1])), moved,
               [from = source](int64_t place) { return from[place]; });
  }
};

class MoeReRoutingKernel final : public Kernel {
 public:
  explicit MoeReRoutingKernel(const KernelInfo& info)
      : num_type_(info.attributes.Int("expert_token_num_type")), idx_type_(info.attributes.Int("idx_type")) {
    if (info.attributes.Has("tokens_dtype")) tokens_dtype_ = NameOfCode(info.attributes.Int("tokens_dtype"));
  }

  void Compute(OpContext& ctx) const override {
    Task task{};
    task.tokens = ctx.Input(In::tokens);
    task.counts = ctx.Input(In::expert_token_num_per_rank);
    const TensorView scales = ctx.Input(In::per_token_scales);
    const TensorView &tokens = task.tokens, &counts = task.counts;
    NPU_OP_CHECK(kOp, tokens && counts, "expected the tensors tokens and expert_token_num_per_rank");
    NPU_OP_CHECK(kOp, tokens.shape.rank() == 2, "expected tokens [A, H], got ", tokens.shape);
    NPU_OP_CHECK(kOp, counts.shape.rank() == 2, "expected expert_token_num_per_rank [N, E], got ", counts.shape);
    const int64_t total = tokens.shape[0];
    CheckRowCount(kOp, total);
    NPU_OP_CHECK(kOp, !scales || scales.shape == Shape{total}, "expected per_token_scales [", total, "], got ",
                 scales.shape);
    NPU_OP_CHECK(kOp, num_type_ == 1, "expected expert_token_num_type 1, got ", num_type_);
    NPU_OP_CHECK(kOp, idx_type_ == 0 || idx_type_ == 1, "expected idx_type 0 or 1, got ", idx_type_);
    NPU_OP_CHECK(kOp, tokens_dtype_ == nullptr || tokens.dtype == DType::kUInt8,
                 "expected tokens of uint8 for tokens_dtype ", tokens_dtype_, ", got ", NameOf(tokens.dtype));
    task.scales = scales.as<float>();
    task.moved = ctx.Output(Out::permute_tokens, tokens.dtype, tokens.shape).data;
    task.moved_scales = ctx.Output(Out::permute_per_token_scales, DType::kFloat32, {total}).as<float>();
    task.idx = ctx.Output(Out::permute_token_idx, DType::kInt32, {total}).as<int32_t>();
    task.expert_counts = ctx.Output(Out::expert_token_num, counts.dtype, {counts.shape[1]}).data;
    task.gathers = idx_type_ == 0;
    task.starts = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, counts.elements() + 1)));
    task.source = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, total)));
    ctx.Launch(kOp,
               [task] { DispatchIndices(kOp, task.counts, [&task](auto index) { task.Run<decltype(index)>(); }); });
  }

 private:
  // Bytes are moved, whatever they mean.
  static const char* NameOfCode(int64_t code) {
    if (code == 290) return "hifloat8";
    if (code == 296) return "float4_e2m1";
    NPU_OP_CHECK(kOp, code == 297,
                 "expected tokens_dtype to be the type code 290 (hifloat8), 296 (float4_e2m1) or 297 (float4_e1m2), "
                 "got ",
                 code);
    return "float4_e1m2";
  }

  int64_t num_type_, idx_type_;
  const char* tokens_dtype_ = nullptr;
};

NPU_KERNEL(NPUMoeReRouting, MoeReRoutingKernel);

}  // namespace
}  // namespace npu
