// npu_fused_infer_attention_score: inference attention over a key/value cache. The semantics are in
// npu_fused_infer_attention_score.py.
#include <string>

#include "ep/kernels/attention/inference/combination.h"
#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::InferenceAttributes;
using In = attention::InferenceInputs;
using attention::InferenceKernel;

constexpr const char* kOp = "npu_fused_infer_attention_score";

enum Input : size_t {
  kQuery = 0,
  kKey,
  kValue,
  kAntiquantScale = 12,
  kKeyAntiquantScale = 14,
  kValueAntiquantScale = 16,
  kBlockTable = 18,
  kKvPaddingSize = 20,
  kKeySharedPrefix,
  kValueSharedPrefix,
  kQueryRope = 24,
  kKeyRope,
};

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

class FusedInferAttentionScoreKernel final : public InferenceKernel {
 public:
  explicit FusedInferAttentionScoreKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes),
                        {&In::query,
                         &In::key,
                         &In::value,
                         &In::pse_shift,
                         &In::atten_mask,
                         &In::lengths,
                         &In::key_lengths,
                         &In::dequant_scale1,
                         &In::quant_scale1,
                         &In::dequant_scale2,
                         &In::quant_scale2,
                         &In::quant_offset2,
                         &In::antiquant_scale,
                         &In::antiquant_offset,
                         &In::key_antiquant_scale,
                         &In::key_antiquant_offset,
                         &In::value_antiquant_scale,
                         &In::value_antiquant_offset,
                         &In::block_table,
                         &In::query_padding_size,
                         &In::kv_padding_size,
                         &In::key_shared_prefix,
                         &In::value_shared_prefix,
                         &In::prefix_length,
                         &In::query_rope,
                         &In::key_rope}) {}
};

// Such a node is not claimed, and its session says why.
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
  parts.rope = given(kQueryRope) || given(kKeyRope);
  parts.prefix = given(kKeySharedPrefix) || given(kValueSharedPrefix);
  parts.integer_query = node.inputs[kQuery] == DType::kInt8;
  parts.token_scales = scales_tokens(kAntiquantScale, "antiquant_mode") ||
                       scales_tokens(kKeyAntiquantScale, "key_antiquant_mode") ||
                       scales_tokens(kValueAntiquantScale, "value_antiquant_mode");
  parts.kv_padding = given(kKvPaddingSize);
  parts.cache_in_pieces = given(kBlockTable) && (in_pieces(kKey) || in_pieces(kValue));
  const std::string conflict = parts.Conflict();
  return conflict.empty() ? "" : std::string("[") + kOp + "] " + conflict;
}

NPU_KERNEL(NPUFusedInferAttentionScore, FusedInferAttentionScoreKernel);
const Registrar unsupported([](OpRegistry& registry) {
  registry.AddUnsupported("npu", "NPUFusedInferAttentionScore", Unsupported);
});

}  // namespace
}  // namespace npu
