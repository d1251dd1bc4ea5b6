// npu_prompt_flash_attention: inference attention over a prompt. The semantics are in npu_prompt_flash_attention.py.
#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::InferenceAttributes;
using In = attention::InferenceInputs;
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

class PromptFlashAttentionKernel final : public InferenceKernel {
 public:
  explicit PromptFlashAttentionKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes),
                        {&In::query, &In::key, &In::value, &In::padding_mask, &In::atten_mask, &In::pse_shift,
                         &In::lengths, &In::dequant_scale1, &In::quant_scale1, &In::dequant_scale2, &In::quant_scale2,
                         &In::quant_offset2, &In::key_lengths}) {}
};

NPU_KERNEL(NPUPromptFlashAttention, PromptFlashAttentionKernel);

}  // namespace
}  // namespace npu
