// npu_prompt_flash_attention: inference attention over a prompt. The semantics are in npu_prompt_flash_attention.py.
#include "contrib_ops/attention/npu_prompt_flash_attention.h"

#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUPromptFlashAttention::In;

using attention::InferenceAttributes;
using attention::InferenceInputs;
using attention::InferenceKernel;

constexpr const char* kOp = "npu_prompt_flash_attention";

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r(kOp, a, "scale_value");
  r.layouts = {"BSH", "BSND", "BNSD", "BNSD_BSND", "SH", "NSD", "TND"};
  r.pre_tokens = a.Int("pre_tokens");
  r.next_tokens = a.Int("next_tokens");
  r.sparse_mode = a.Int("sparse_mode");
  r.decode = InferenceAttributes::Decode::kNever;
  r.score_scale_name = "deq_scale1";
  r.value_scale_name = "deq_scale2";
  return r;
}

InferenceInputs ReadInputs(OpContext& ctx) {
  return {
      .query = ctx.Input(In::query),
      .key = ctx.Input(In::key),
      .value = ctx.Input(In::value),
      .padding_mask = ctx.Input(In::padding_mask),
      .pse_shift = ctx.Input(In::pse_shift),
      .atten_mask = ctx.Input(In::atten_mask),
      .lengths = ctx.Input(In::actual_seq_lengths),
      .key_lengths = ctx.Input(In::actual_seq_lengths_kv),
      .dequant_scale1 = ctx.Input(In::deq_scale1),
      .quant_scale1 = ctx.Input(In::quant_scale1),
      .dequant_scale2 = ctx.Input(In::deq_scale2),
      .quant_scale2 = ctx.Input(In::quant_scale2),
      .quant_offset2 = ctx.Input(In::quant_offset2),
  };
}

class PromptFlashAttentionKernel final : public InferenceKernel {
 public:
  explicit PromptFlashAttentionKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes), ReadInputs) {}
};

NPU_KERNEL(NPUPromptFlashAttention, PromptFlashAttentionKernel);

}  // namespace
}  // namespace npu
