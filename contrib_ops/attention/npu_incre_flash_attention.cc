// npu_incre_flash_attention: inference attention of one query row per sequence. The semantics are in
// npu_incre_flash_attention.py.
#include <string>

#include "ep/kernels/attention/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::Inference;
using attention::InferenceAttributes;
using attention::InferenceInputs;

constexpr const char* kOp = "npu_incre_flash_attention";

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r;
  r.op = kOp;
  r.layout = a.String("input_layout", "BSH");
  r.layouts = {"BSH", "BSND", "BNSD"};
  r.heads = a.Int("num_heads", 1);
  r.key_heads = a.Int("num_key_value_heads", 0);
  r.scale = static_cast<float>(a.Float("scale_value", 1.0));
  r.sparse_mode = 1;
  r.block_size = a.Int("block_size", 0);
  r.decode = InferenceAttributes::Decode::kAlways;
  r.key_lengths_name = "actual_seq_lengths";
  return r;
}

class IncreFlashAttentionKernel final : public Kernel {
 public:
  explicit IncreFlashAttentionKernel(const KernelInfo& info) : inference_(Read(info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    InferenceInputs in;
    TensorView padding_mask;
    TensorView* const order[] = {
        &in.query,          &in.key,          &in.value,           &padding_mask,        &in.atten_mask,
        &in.pse_shift,      &in.key_lengths,  &in.antiquant_scale, &in.antiquant_offset, &in.block_table,
        &in.dequant_scale1, &in.quant_scale1, &in.dequant_scale2,  &in.quant_scale2,     &in.quant_offset2,
        &in.kv_padding_size};
    size_t i = 0;
    for (TensorView* input : order) *input = ctx.Input(i++);
    NPU_CHECK(!padding_mask, "[", kOp, "] expected no padding_mask: the argument is reserved");
    inference_.Compute(ctx, in);
  }

 private:
  Inference inference_;
};

NPU_KERNEL(NPUIncreFlashAttention, IncreFlashAttentionKernel);

}  // namespace
}  // namespace npu
