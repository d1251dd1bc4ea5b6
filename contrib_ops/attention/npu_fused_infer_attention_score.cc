// npu_fused_infer_attention_score: inference attention over a key/value cache. The semantics are in
// npu_fused_infer_attention_score.py.
#include "contrib_ops/attention/npu_fused_infer_attention_score.h"

#include <string>

#include "ep/kernels/attention/inference/combination.h"
#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUFusedInferAttentionScore::In;

using attention::InferenceAttributes;
using attention::InferenceInputs;
using attention::InferenceKernel;

constexpr const char* kOp = "npu_fused_infer_attention_score";

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r(kOp, a, "scale");
  r.layouts = {"BSH",       "BSND",      "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD",
               "BSND_NBSD", "BNSD_NBSD", "TND",  "NTD",       "TND_NTD",  "NTD_TND",   "NSD"};
  r.pre_tokens = a.Int("pre_tokens");
  r.next_tokens = a.Int("next_tokens");
  r.sparse_mode = a.Int("sparse_mode");
  r.block_size = a.Int("block_size");
  r.antiquant_mode = a.Int("antiquant_mode");
  r.key_antiquant_mode = a.Int("key_antiquant_mode");
  r.value_antiquant_mode = a.Int("value_antiquant_mode");
  r.return_lse = a.Bool("softmax_lse_flag");
  r.decode = InferenceAttributes::Decode::kSingleRow;
  return r;
}

InferenceInputs ReadInputs(OpContext& ctx) {
  InferenceInputs in = attention::ReadCommonInputs<In>(ctx);
  in.lengths = ctx.Input(In::actual_seq_lengths);
  in.key_lengths = ctx.Input(In::actual_seq_lengths_kv);
  in.dequant_scale1 = ctx.Input(In::dequant_scale1);
  in.dequant_scale2 = ctx.Input(In::dequant_scale2);
  in.antiquant_scale = ctx.Input(In::antiquant_scale);
  in.antiquant_offset = ctx.Input(In::antiquant_offset);
  in.key_antiquant_scale = ctx.Input(In::key_antiquant_scale);
  in.key_antiquant_offset = ctx.Input(In::key_antiquant_offset);
  in.value_antiquant_scale = ctx.Input(In::value_antiquant_scale);
  in.value_antiquant_offset = ctx.Input(In::value_antiquant_offset);
  in.block_table = ctx.Input(In::block_table);
  in.query_padding_size = ctx.Input(In::query_padding_size);
  in.kv_padding_size = ctx.Input(In::kv_padding_size);
  in.key_shared_prefix = ctx.Input(In::key_shared_prefix);
  in.value_shared_prefix = ctx.Input(In::value_shared_prefix);
  in.prefix_length = ctx.Input(In::actual_shared_prefix_len);
  in.query_rope = ctx.Input(In::query_rope);
  in.key_rope = ctx.Input(In::key_rope);
  return in;
}

class FusedInferAttentionScoreKernel final : public InferenceKernel {
 public:
  explicit FusedInferAttentionScoreKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes), ReadInputs) {}
};

// Why the node is not claimed, for the session's message; empty when it is supported.
std::string Unsupported(const NodeView& node) {
  const auto given = [&](size_t i) { return i < node.inputs.size() && node.inputs[i] != DType::kUndefined; };
  const auto in_pieces = [&](size_t i) { return node.rank_known[i] && node.shapes[i].size() == 5; };
  const auto scales_tokens = [&](size_t scale, const char* mode) {
    return given(scale) && attention::ScalesTokens(node.attributes.Int(mode));
  };
  const std::string layout = node.attributes.String("input_layout");
  const attention::Layout* known = attention::FindLayout(layout);
  attention::Combination parts;
  if (known != nullptr && attention::IsPacked(known->input)) parts.layout = layout;
  parts.rope = given(In::query_rope) || given(In::key_rope);
  parts.prefix = given(In::key_shared_prefix) || given(In::value_shared_prefix);
  parts.token_scales = scales_tokens(In::antiquant_scale, "antiquant_mode") ||
                       scales_tokens(In::key_antiquant_scale, "key_antiquant_mode") ||
                       scales_tokens(In::value_antiquant_scale, "value_antiquant_mode");
  parts.cache_in_pieces = given(In::block_table) && (in_pieces(In::key) || in_pieces(In::value));
  const std::string conflict = parts.Conflict();
  return conflict.empty() ? "" : Concat("[", kOp, "] ", conflict);
}

NPU_KERNEL(NPUFusedInferAttentionScore, FusedInferAttentionScoreKernel);
const Registrar unsupported([](OpRegistry& registry) {
  registry.AddUnsupported("npu", "NPUFusedInferAttentionScore", Unsupported);
});

}  // namespace
}  // namespace npu
