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
  InferenceInputs in = attention::ReadCommonInputs<In>(ctx);
  in.padding_mask = ctx.Input(In::padding_mask);
  in.lengths = ctx.Input(In::actual_seq_lengths);
  in.key_lengths = ctx.Input(In::actual_seq_lengths_kv);
  in.dequant_scale1 = ctx.Input(In::deq_scale1);
  in.dequant_scale2 = ctx.Input(In::deq_scale2);
  return in;
}

class PromptFlashAttentionKernel final : public InferenceKernel {
 public:
  explicit PromptFlashAttentionKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes), ReadInputs) {}
};

NPU_KERNEL(NPUPromptFlashAttention, PromptFlashAttentionKernel);

}  // namespace
}  // namespace npu
