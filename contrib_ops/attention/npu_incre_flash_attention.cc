// npu_incre_flash_attention: inference attention of one query row per sequence. The semantics are in
// npu_incre_flash_attention.py.
#include "contrib_ops/attention/npu_incre_flash_attention.h"

#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUIncreFlashAttention::In;

using attention::InferenceAttributes;
using attention::InferenceInputs;
using attention::InferenceKernel;

constexpr const char* kOp = "npu_incre_flash_attention";

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r(kOp, a, "scale_value");
  r.layouts = {"BSH", "BSND", "BNSD"};
  r.sparse_mode = 1;
  r.block_size = a.Int("block_size");
  r.decode = InferenceAttributes::Decode::kAlways;
  r.key_lengths_name = "actual_seq_lengths";
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
      .key_lengths = ctx.Input(In::actual_seq_lengths),
      .dequant_scale1 = ctx.Input(In::dequant_scale1),
      .quant_scale1 = ctx.Input(In::quant_scale1),
      .dequant_scale2 = ctx.Input(In::dequant_scale2),
      .quant_scale2 = ctx.Input(In::quant_scale2),
      .quant_offset2 = ctx.Input(In::quant_offset2),
      .antiquant_scale = ctx.Input(In::antiquant_scale),
      .antiquant_offset = ctx.Input(In::antiquant_offset),
      .block_table = ctx.Input(In::block_table),
      .kv_padding_size = ctx.Input(In::kv_padding_size),
  };
}

class IncreFlashAttentionKernel final : public InferenceKernel {
 public:
  explicit IncreFlashAttentionKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes), ReadInputs) {}
};

NPU_KERNEL(NPUIncreFlashAttention, IncreFlashAttentionKernel);

}  // namespace
}  // namespace npu
