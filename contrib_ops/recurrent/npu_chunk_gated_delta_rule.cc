// npu_chunk_gated_delta_rule(query, key, value, beta?, initial_state?, actual_seq_lengths?, g?; scale) -> out,
// final_state. The semantics are in npu_chunk_gated_delta_rule.py.
#include "contrib_ops/recurrent/npu_chunk_gated_delta_rule.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/kernels/recurrent/delta_call.h"

namespace npu {
namespace {

using In = nodes::NPUChunkGatedDeltaRule::In;
using Out = nodes::NPUChunkGatedDeltaRule::Out;
using recurrent::DeltaBlock;
using recurrent::DeltaSizes;
using recurrent::DeltaTensors;
using recurrent::DeltaTokens;
using recurrent::DeltaValues;
using recurrent::TokenRange;
using recurrent::TokenRanges;

constexpr const char* kOp = "npu_chunk_gated_delta_rule";

class ChunkGatedDeltaRuleKernel final : public Kernel {
 public:
  explicit ChunkGatedDeltaRuleKernel(const KernelInfo& info)
      : scale_(info.attributes.Has("scale") ? static_cast<float>(info.attributes.Float("scale")) : 1.0f) {}

  void Compute(OpContext& ctx) const override {
    const DeltaTensors in{ctx.Input(In::query),
                          ctx.Input(In::key),
                          ctx.Input(In::value),
                          ctx.Input(In::beta),
                          ctx.Input(In::actual_seq_lengths),
                          ctx.Input(In::g),
                          {}};
    const TensorView initial = ctx.Input(In::initial_state);
    const DeltaSizes sizes = CheckDeltaTensors(kOp, in);
    const int64_t sequences = in.lengths ? in.lengths.shape[0] : 1;
    const Shape states{sequences, sizes.heads, sizes.value_width, sizes.key_width};
    NPU_OP_CHECK(kOp, !initial || initial.shape == states, "expected initial_state of shape ", states, ", got ",
                 initial.shape);
    const TensorView out = OutputOrRoom(ctx, Out::out, in.value.dtype, sizes.result());
    const DType state_type = initial ? initial.dtype : DType::kFloat32;
    const TensorView final_state = OutputOrRoom(ctx, Out::final_state, state_type, states);
    ctx.Launch(kOp, [sizes, lengths = in.lengths, initial, final_state, scale = scale_,
                     values = DeltaValues(ctx, in, sizes, out)] {
      const std::vector<TokenRange> ranges = TokenRanges(kOp, lengths, sizes.tokens);
      const DeltaTokens tokens = values.Load(kOp);
      DispatchFloats(kOp, final_state.dtype, [&](auto tag) {
        using T = decltype(tag);
        tokens.ForEachBlock(
            static_cast<int64_t>(ranges.size()), [&](int64_t i, int64_t head, int64_t row, int64_t rows) {
              const auto [begin, count] = ranges[static_cast<size_t>(i)];
              const int64_t at = ((i * sizes.heads + head) * sizes.value_width + row) * sizes.key_width;
              const T* const before = initial ? initial.as<const T>() + at : nullptr;
              T* const after = final_state.as<T>() + at;
              DeltaBlock<T> block(rows, sizes.key_width);
              if (count == 0) return block.Copy(before, after);
              block.Run(
                  before, count, scale, [&, first = begin](int64_t t) { return tokens.Token(first + t, head, row); },
                  [&, last = count - 1](int64_t t) { return t == last ? after : nullptr; });
            });
      });
      values.Store(kOp);
    });
  }

 private:
  float scale_;
};

NPU_KERNEL(NPUChunkGatedDeltaRule, ChunkGatedDeltaRuleKernel);

}  // namespace
}  // namespace npu
