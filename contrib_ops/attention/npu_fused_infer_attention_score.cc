// npu_fused_infer_attention_score: inference attention over a key/value cache. The semantics are in
// npu_fused_infer_attention_score.py.
#include <string>

#include "ep/kernels/attention/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::Inference;
using attention::InferenceAttributes;
using attention::InferenceInputs;

enum Input : size_t { kQuery = 0, kKeySharedPrefix = 21, kQueryRope = 24 };

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r;
  r.op = "npu_fused_infer_attention_score";
  r.layout = a.String("input_layout", "BSH");
  r.layouts = {"BSH",       "BSND",      "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD",
               "BSND_NBSD", "BNSD_NBSD", "TND",  "NTD",       "TND_NTD",  "NTD_TND",   "NSD"};
  r.heads = a.Int("num_heads", 1);
  r.key_heads = a.Int("num_key_value_heads", 0);
  r.scale = static_cast<float>(a.Float("scale", 1.0));
  r.pre_tokens = a.Int("pre_tokens", INT32_MAX);
  r.next_tokens = a.Int("next_tokens", INT32_MAX);
  r.sparse_mode = a.Int("sparse_mode", 0);
  r.block_size = a.Int("block_size", 0);
  r.antiquant_mode = a.Int("antiquant_mode", 0);
  r.key_antiquant_mode = a.Int("key_antiquant_mode", 0);
  r.value_antiquant_mode = a.Int("value_antiquant_mode", 0);
  r.return_lse = a.Bool("softmax_lse_flag", false);
  r.decode = InferenceAttributes::Decode::kSingleRow;
  return r;
}

class FusedInferAttentionScoreKernel final : public Kernel {
 public:
  explicit FusedInferAttentionScoreKernel(const KernelInfo& info) : inference_(Read(info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    InferenceInputs in;
    TensorView* const order[] = {&in.query,
                                 &in.key,
                                 &in.value,
                                 &in.pse_shift,
                                 &in.atten_mask,
                                 &in.lengths,
                                 &in.key_lengths,
                                 &in.dequant_scale1,
                                 &in.quant_scale1,
                                 &in.dequant_scale2,
                                 &in.quant_scale2,
                                 &in.quant_offset2,
                                 &in.antiquant_scale,
                                 &in.antiquant_offset,
                                 &in.key_antiquant_scale,
                                 &in.key_antiquant_offset,
                                 &in.value_antiquant_scale,
                                 &in.value_antiquant_offset,
                                 &in.block_table,
                                 &in.query_padding_size,
                                 &in.kv_padding_size,
                                 &in.key_shared_prefix,
                                 &in.value_shared_prefix,
                                 &in.prefix_length,
                                 &in.query_rope,
                                 &in.key_rope};
    size_t i = 0;
    for (TensorView* input : order) *input = ctx.Input(i++);
    inference_.Compute(ctx, in);
  }

 private:
  Inference inference_;
};

std::string Unsupported(const NodeView& node) {
  const auto given = [&](size_t i) { return i < node.inputs.size() && node.inputs[i] != DType::kUndefined; };
  if (given(kQueryRope) && node.inputs[kQuery] == DType::kInt8) {
    return "query_rope and key_rope with query int8 are not implemented";
  }
  if (given(kQueryRope) && given(kKeySharedPrefix)) {
    return "query_rope and key_rope with key_shared_prefix are not implemented";
  }
  return "";
}

NPU_KERNEL(NPUFusedInferAttentionScore, FusedInferAttentionScoreKernel);
const Registrar unsupported([](OpRegistry& registry) {
  registry.AddUnsupported("npu", "NPUFusedInferAttentionScore", Unsupported);
});

}  // namespace
}  // namespace npu
