// npu_recurrent_gated_delta_rule(query, key, value, state, beta?, actual_seq_lengths?, ssm_state_indices?,
// num_accepted_tokens?, g?, gk?; scale) -> out, state. The semantics are in npu_recurrent_gated_delta_rule.py.
#include "contrib_ops/recurrent/npu_recurrent_gated_delta_rule.h"

#include <cmath>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/kernels/recurrent/delta_call.h"
#include "ep/kernels/segments.h"

namespace npu {
namespace {

using In = nodes::NPURecurrentGatedDeltaRule::In;
using Out = nodes::NPURecurrentGatedDeltaRule::Out;
using recurrent::DeltaBlock;
using recurrent::DeltaSizes;
using recurrent::DeltaTensors;
using recurrent::DeltaTokens;
using recurrent::DeltaValues;
using recurrent::TokenRange;
using recurrent::TokenRanges;

constexpr const char* kOp = "npu_recurrent_gated_delta_rule";

// The block of states that each token has. The numbers are data of the call and may be anything.
std::vector<int64_t> Blocks(const TensorView& indices, int64_t tokens, int64_t blocks) {
  std::vector<int64_t> found(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t block = indices ? ReadOnce(indices, t) : t;
    NPU_OP_CHECK(kOp, block >= 0 && block < blocks, "expected ssm_state_indices in [0, ", blocks, "), got ", block,
                 " at ", t);
    found[static_cast<size_t>(t)] = block;
  }
  return found;
}

// The token whose block has the state that each sequence begins with; idem.
std::vector<int64_t> AcceptedTokens(const TensorView& accepted, const std::vector<TokenRange>& ranges) {
  std::vector<int64_t> found;
  for (const auto [begin, count] : ranges) {
    const auto i = static_cast<int64_t>(found.size());
    const int64_t tokens = accepted && count > 0 ? ReadOnce(accepted, i) : 1;
    NPU_OP_CHECK(kOp, count == 0 || (tokens >= 1 && tokens <= count), "expected num_accepted_tokens in [1, ", count,
                 "] for sequence ", i, ", got ", tokens);
    found.push_back(begin + tokens - 1);
  }
  return found;
}

class RecurrentGatedDeltaRuleKernel final : public Kernel {
 public:
  explicit RecurrentGatedDeltaRuleKernel(const KernelInfo& info) {
    if (info.attributes.Has("scale")) scale_ = static_cast<float>(info.attributes.Float("scale"));
  }

  void Compute(OpContext& ctx) const override {
    const DeltaTensors in{ctx.Input(In::query),
                          ctx.Input(In::key),
                          ctx.Input(In::value),
                          ctx.Input(In::beta),
                          ctx.Input(In::actual_seq_lengths),
                          ctx.Input(In::g),
                          ctx.Input(In::gk)};
    const TensorView state = ctx.Input(In::state), indices = ctx.Input(In::ssm_state_indices),
                     accepted = ctx.Input(In::num_accepted_tokens);
    const DeltaSizes sizes = CheckDeltaTensors(kOp, in);
    const int64_t tokens = sizes.tokens, sequences = in.lengths ? in.lengths.shape[0] : 1;
    NPU_OP_CHECK(kOp,
                 state && state.shape.rank() == 4 && state.shape[1] == sizes.heads &&
                     state.shape[2] == sizes.value_width && state.shape[3] == sizes.key_width,
                 "expected state of shape [blocks, ", sizes.heads, ", ", sizes.value_width, ", ", sizes.key_width,
                 "], got ", state.shape);
    NPU_OP_CHECK(kOp, !indices || indices.shape == Shape{tokens}, "expected ssm_state_indices of shape [", tokens,
                 "], got ", indices.shape);
    NPU_OP_CHECK(kOp, indices || state.shape[0] >= tokens, "expected state of at least ", tokens,
                 " blocks without ssm_state_indices, got ", state.shape[0]);
    NPU_OP_CHECK(kOp, !accepted || accepted.shape == Shape{sequences}, "expected num_accepted_tokens of shape [",
                 sequences, "], got ", accepted.shape);
    const TensorView out = OutputOrRoom(ctx, Out::out, in.value.dtype, sizes.result());
    const TensorView states = OutputOrRoom(ctx, Out::state_out, state.dtype, state.shape);
    const float scale = scale_.value_or(1 / std::sqrt(static_cast<float>(std::max<int64_t>(1, sizes.key_width))));
    ctx.Launch(kOp, [sizes, lengths = in.lengths, indices, accepted, state, states, scale,
                     values = DeltaValues(ctx, in, sizes, out)] {
      const std::vector<TokenRange> ranges = TokenRanges(kOp, lengths, sizes.tokens);
      const std::vector<int64_t> first = AcceptedTokens(accepted, ranges);
      const std::vector<int64_t> blocks = Blocks(indices, sizes.tokens, state.shape[0]);
      const DeltaTokens all = values.Load(kOp);
      if (states.data != state.data) CopyBytes(state.data, states.data, static_cast<int64_t>(state.bytes()));
      DispatchFloats(kOp, states.dtype, [&](auto tag) {
        using T = decltype(tag);
        all.ForEachBlock(static_cast<int64_t>(ranges.size()), [&](int64_t i, int64_t head, int64_t row, int64_t rows) {
          const auto [begin, count] = ranges[static_cast<size_t>(i)];
          if (count == 0) return;
          T* const of_rows = states.as<T>() + (head * sizes.value_width + row) * sizes.key_width;
          const auto at = [&](int64_t t) { return of_rows + blocks[static_cast<size_t>(t)] * sizes.state(); };
          DeltaBlock<T>(rows, sizes.key_width)
              .Run(
                  at(first[static_cast<size_t>(i)]), count, scale,
                  [&, begin = begin](int64_t t) { return all.Token(begin + t, head, row); },
                  [&, begin = begin](int64_t t) { return at(begin + t); });
        });
      });
      values.Store(kOp);
    });
  }

 private:
  std::optional<float> scale_;
};

NPU_KERNEL(NPURecurrentGatedDeltaRule, RecurrentGatedDeltaRuleKernel);

}  // namespace
}  // namespace npu
