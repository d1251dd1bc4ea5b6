// npu_prompt_flash_attention: inference attention over a prompt. The semantics are in npu_prompt_flash_attention.py.
#include <string>

#include "ep/kernels/attention/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::Inference;
using attention::InferenceAttributes;
using attention::InferenceInputs;

constexpr const char* kOp = "npu_prompt_flash_attention";

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r;
  r.op = kOp;
  r.layout = a.String("input_layout", "BSH");
  r.layouts = {"BSH", "BSND", "BNSD", "BNSD_BSND", "SH", "NSD", "TND"};
  r.heads = a.Int("num_heads", 1);
  r.key_heads = a.Int("num_key_value_heads", 0);
  r.scale = static_cast<float>(a.Float("scale_value", 1.0));
  r.pre_tokens = a.Int("pre_tokens", INT32_MAX);
  r.next_tokens = a.Int("next_tokens", 0);
  r.sparse_mode = a.Int("sparse_mode", 0);
  r.decode = InferenceAttributes::Decode::kNever;
  r.score_scale_name = "deq_scale1";
  r.value_scale_name = "deq_scale2";
  return r;
}

class PromptFlashAttentionKernel final : public Kernel {
 public:
  explicit PromptFlashAttentionKernel(const KernelInfo& info) : inference_(Read(info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    InferenceInputs in;
    TensorView padding_mask;
    TensorView* const order[] = {
        &in.query,        &in.key,           &in.value,          &padding_mask,    &in.atten_mask,
        &in.pse_shift,    &in.lengths,       &in.dequant_scale1, &in.quant_scale1, &in.dequant_scale2,
        &in.quant_scale2, &in.quant_offset2, &in.key_lengths};
    size_t i = 0;
    for (TensorView* input : order) *input = ctx.Input(i++);
    NPU_CHECK(!padding_mask, "[", kOp, "] expected no padding_mask: the argument is reserved");
    inference_.Compute(ctx, in);
  }

 private:
  Inference inference_;
};

NPU_KERNEL(NPUPromptFlashAttention, PromptFlashAttentionKernel);

}  // namespace
}  // namespace npu
